"""A pool of connections with a deadline on everything: getting one, giving one back, closing.

It opens connections when they are needed (none at start), tags them with its application_name, and resets a session
when it is known who gets it next: a caller that folds the reset into its own first statement pays no round trip for it,
everybody else gets a session like new.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias
from weakref import WeakSet

import asyncpg

from pools import nesting
from pools.errors import NestedAcquire, PoolNotOpen, PoolTimeout
from pools.session import SESSION_RESET
from pools.spec import PoolSpec

Connection: TypeAlias = "asyncpg.Connection[Any]"

_IDLE_S = 300.0
# Locks of the session too: whoever folds the reset gives them back on his own, where that costs no statement.
_WHOLE_RESET = f"{SESSION_RESET};SELECT pg_advisory_unlock_all()"
_CLOSE_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """A pool at one moment.

    :param size: connections that it may hold; `open` are, of which `in_use` are checked out and `idle` are free.
    :param waiting: callers that wait for a connection now.
    :param acquires: waits that ended with a connection, so far; `timeouts` those that did not.
    :param waited_s_total: time spent waiting so far, seconds; `waited_s_max` the longest wait.
    :param terminated: connections that had to be cut.
    """

    name: str
    application_name: str
    size: int
    open: int
    in_use: int
    idle: int
    waiting: int
    acquires: int
    timeouts: int
    waited_s_total: float
    waited_s_max: float
    terminated: int


class Checkout:
    """One connection that is checked out, to be given back by `release` or `terminate`."""

    __slots__ = ("_pool", "_proxy", "_record", "connection")

    def __init__(self, pool: Pool, proxy: Any, record: dict[int, int] | None) -> None:
        self._pool = pool
        self._proxy = proxy
        self._record = record
        self.connection: Connection = proxy._con
        """The driver's connection itself: the pool's wrapper costs a look-up at every call."""

    def terminate(self) -> None:
        """Cut the connection at once, whatever it does. The server ends the session and frees its locks by itself."""
        if not self.connection.is_closed():
            self._pool._terminated += 1
        self.connection.terminate()
        self._done()

    async def release(self) -> None:
        """Give the connection back; one that cannot be given back within the release deadline is cut. Never raises."""
        if self._proxy is None:
            return
        if self.connection.is_closed():
            self.terminate()
            return
        proxy = self._proxy
        self._done()
        await self._pool._take_back(proxy, self.connection)

    def _done(self) -> None:
        if self._proxy is not None:
            self._proxy = None
            self._pool._in_use -= 1
            if self._record is not None:
                self._record[id(self._pool)] -= 1


class Pool:
    """The connections of one purpose.

    :param dsn: where the database is.
    """

    def __init__(self, dsn: str, spec: PoolSpec) -> None:
        self.spec = spec
        self._dsn = dsn
        self._pool: asyncpg.Pool[Any] | None = None
        self._dirty: WeakSet[Connection] = WeakSet()
        self._version: int | None = None
        self._in_use = 0
        self._waiting = 0
        self._acquires = 0
        self._timeouts = 0
        self._waited_s_total = 0.0
        self._waited_s_max = 0.0
        self._terminated = 0

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.spec.name

    async def open(self) -> None:
        """Make the pool ready. It opens no connection yet: processes that start together must not storm the server."""
        self._pool = asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self.spec.size,
            max_inactive_connection_lifetime=_IDLE_S,
            connect=self._connect,
            reset=_keep,
        )
        await self._pool

    async def checkout(self, *, folds_reset: bool = False) -> Checkout:
        """Take a connection.

        :param folds_reset: the caller sends `SESSION_RESET` in front of its own first statement, so this does not.
        :raises PoolTimeout: none became free in time.
        :raises NestedAcquire: this work holds as many as it may.
        :raises PoolNotOpen: the pool is not open.
        :raises asyncpg.PostgresError, OSError, TimeoutError: a new connection was needed and could not be opened.
        """
        pool = self._pool
        if pool is None or pool.is_closing():
            raise PoolNotOpen(pool=self.name)
        record = nesting.record()
        if record is not None:
            if record.get(id(self), 0) > self.spec.nested:
                raise NestedAcquire(pool=self.name, nested=self.spec.nested)
            record[id(self)] = record.get(id(self), 0) + 1
        try:
            proxy = await self._acquire(pool)
        except BaseException:
            if record is not None:
                record[id(self)] -= 1
            raise
        self._in_use += 1
        checkout = Checkout(self, proxy, record)
        if not folds_reset and checkout.connection in self._dirty:
            try:
                await checkout.connection.execute(_WHOLE_RESET, timeout=self.spec.release_timeout_s)
            except BaseException:
                checkout.terminate()
                raise
            self._dirty.discard(checkout.connection)
        return checkout

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """Take a connection with a session like new for the length of a block. Raises as `checkout` does."""
        checkout = await self.checkout()
        try:
            yield checkout.connection
        except asyncio.CancelledError:
            # What was sent may still run; nobody waits for it here.
            checkout.terminate()
            raise
        finally:
            await checkout.release()

    async def expire(self) -> None:
        """Let go of every connection: idle ones on their next use, busy ones when they are given back."""
        if self._pool is not None:
            await self._pool.expire_connections()

    def statistics(self) -> PoolStatistics:
        """Return the pool as it is now."""
        opened = 0 if self._pool is None else self._pool.get_size()
        return PoolStatistics(
            name=self.name,
            application_name=self.spec.application_name,
            size=self.spec.size,
            open=opened,
            in_use=self._in_use,
            idle=0 if self._pool is None else self._pool.get_idle_size(),
            waiting=self._waiting,
            acquires=self._acquires,
            timeouts=self._timeouts,
            waited_s_total=self._waited_s_total,
            waited_s_max=self._waited_s_max,
            terminated=self._terminated,
        )

    async def close(self, deadline_s: float = _CLOSE_DEADLINE_S) -> None:
        """Close all connections; those that are still checked out at the deadline are cut."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(deadline_s):
                await pool.close()
        except TimeoutError:
            self._terminated += self._in_use
            pool.terminate()

    async def _acquire(self, pool: asyncpg.Pool[Any]) -> Any:
        began = monotonic()
        self._waiting += 1
        try:
            async with asyncio.timeout(self.spec.acquire_timeout_s) as deadline:
                proxy = await pool.acquire()
        except TimeoutError:
            if not deadline.expired():
                raise  # of the connect, whose deadline is its own
            self._timeouts += 1
            raise PoolTimeout(
                pool=self.name, size=self.spec.size, waiters=self._waiting - 1, waited_s=monotonic() - began
            ) from None
        except asyncpg.InterfaceError as error:
            if pool.is_closing():
                raise PoolNotOpen(pool=self.name) from error
            raise
        finally:
            self._waiting -= 1
            waited_s = monotonic() - began
            self._waited_s_total += waited_s
            self._waited_s_max = max(self._waited_s_max, waited_s)
        self._acquires += 1
        return proxy

    async def _take_back(self, proxy: Any, connection: Connection) -> None:
        pool = self._pool
        if pool is None:
            connection.terminate()
            return
        self._dirty.add(connection)
        try:
            await pool.release(proxy, timeout=self.spec.release_timeout_s)
        except asyncio.CancelledError:
            connection.terminate()
            raise
        except Exception:
            # It could not be made ready for anybody else: it is cut, and whoever released it has lost nothing.
            self._terminated += 1
            connection.terminate()

    async def _connect(self, *args: Any, **kwargs: Any) -> Connection:
        if self._version is None:
            self._version = await self._server_version(*args, **kwargs)
        settings = self.spec.session.server_settings(self._version)
        connection = await self._dial(*args, server_settings=settings, **kwargs)
        version = _version_number(connection)
        if version // 10000 != self._version // 10000:
            self._version = version  # another server answers here now
        return connection

    async def _server_version(self, *args: Any, **kwargs: Any) -> int:
        """Ask once, on a connection without settings: an unknown setting in the start packet would be refused."""
        connection = await self._dial(*args, server_settings={}, **kwargs)
        try:
            return _version_number(connection)
        finally:
            connection.terminate()

    async def _dial(self, *args: Any, server_settings: dict[str, str], **kwargs: Any) -> Connection:
        kwargs |= {
            "timeout": self.spec.connect_timeout_s,
            "server_settings": server_settings | {"application_name": self.spec.application_name},
        }
        connection: Connection = await asyncpg.connect(*args, **kwargs)
        self._watch_the_line(connection)
        return connection

    def _watch_the_line(self, connection: Connection) -> None:
        """Let the client's side of the line notice a dead peer too; the driver has no option for that."""
        line = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]  # it has no public way
        if line is None or line.family == socket.AF_UNIX:
            return
        session = self.spec.session
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", session.keepalive_idle_s),
            ("TCP_KEEPINTVL", session.keepalive_interval_s),
            ("TCP_KEEPCNT", session.keepalive_count),
            ("TCP_USER_TIMEOUT", round(session.unacknowledged_s * 1000)),
        ):
            if hasattr(socket, option):  # not every platform knows all of them
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _version_number(connection: Connection) -> int:
    version = connection.get_server_version()
    return version.major * 10000 + version.minor


async def _keep(_: Any) -> None:
    """In place of the driver's reset query: a session is reset for its next user, not after its last one."""
