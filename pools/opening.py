"""Opens the sessions of one pool: with its settings, its name, and a client that notices a dead line.

Which settings a server knows depends on its version, and an unknown one in the start packet is refused together with
the connection. So the first connection goes out with what all servers know, and tells the version; only where more
could have been said is it opened anew. Nothing is asked before somebody needs a connection.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, TypeAlias

import asyncpg

from pools.spec import PoolSpec

Connection: TypeAlias = "asyncpg.Connection[Any]"


class Opener:
    """Opens connections as a pool's spec says."""

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = spec
        self._version_num: int | None = None
        self._learning = asyncio.Lock()

    async def open(self, *args: Any, **kwargs: Any) -> Connection:
        """Open a connection within the connect timeout. Takes what `asyncpg.connect` takes.

        :raises TimeoutError: nobody answered in time; its text names the pool.
        :raises asyncpg.PostgresError, OSError: as the driver has it.
        """
        spec = self._spec
        try:
            async with asyncio.timeout(spec.connect_timeout_s):
                return await self._open(*args, **kwargs)
        except TimeoutError as error:
            raise TimeoutError(
                f"pool {spec.name}: the database server did not let us in within {spec.connect_timeout_s:g} s"
            ) from error

    async def _open(self, *args: Any, **kwargs: Any) -> Connection:
        if self._version_num is None:
            # One asks and the others wait: lanes that start together must not all connect twice.
            async with self._learning:
                if self._version_num is None:
                    return await self._open_first(*args, **kwargs)
        try:
            connection = await self._dial(self._version_num, *args, **kwargs)
        except asyncpg.UndefinedObjectError:
            # An older server than before answers here now, and does not know one of the settings.
            return await self._open_first(*args, **kwargs)
        self._version_num = _version_num(connection)
        return connection

    async def _open_first(self, *args: Any, **kwargs: Any) -> Connection:
        session = self._spec.session
        connection = await self._dial(0, *args, **kwargs)
        self._version_num = version_num = _version_num(connection)
        if session.server_settings(version_num) == session.server_settings():
            return connection
        connection.terminate()
        return await self._dial(version_num, *args, **kwargs)

    async def _dial(self, version_num: int, *args: Any, **kwargs: Any) -> Connection:
        spec, session = self._spec, self._spec.session
        kwargs |= {
            "timeout": spec.connect_timeout_s,
            # The server ends a statement before this does, unless the line is dead.
            "command_timeout": session.command_timeout_s,
            "server_settings": {
                **session.server_settings(version_num),
                "application_name": spec.application_name,
            },
        }
        if session.pooler:
            # The next statement may meet another server session, which knows none of this one's names.
            kwargs["statement_cache_size"] = 0
        connection: Connection = await asyncpg.connect(*args, **kwargs)
        self._watch_the_line(connection)
        return connection

    def _watch_the_line(self, connection: Connection) -> None:
        """Let the client's end notice a dead peer too; the driver has no option for that."""
        line = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]  # it has no public way
        if line is None or line.family == socket.AF_UNIX:
            return
        session = self._spec.session
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", session.keepalive_idle_s),
            ("TCP_KEEPINTVL", session.keepalive_interval_s),
            ("TCP_KEEPCNT", session.keepalive_count),
            ("TCP_USER_TIMEOUT", round(session.unacknowledged_s * 1000)),
        ):
            if hasattr(socket, option):  # not every platform knows all of them
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _version_num(connection: Connection) -> int:
    """Return a server's `server_version_num` from what it said of itself at the start."""
    version = connection.get_server_version()
    return version.major * 10_000 + version.micro
