"""One connection in somebody's hands, from being taken to being given back, exactly once.

The driver's wrapper of a pooled connection is the fence: it forgets its connection in the moment in which that goes
back to the pool, so nothing done through it can reach the session of the next user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import asyncpg

from pools import nesting
from pools.opening import Connection

if TYPE_CHECKING:
    from pools.pool import Pool


class Checkout:
    """A connection that is checked out, to be given back by `release` or `terminate`. Made by `Pool.checkout`."""

    __slots__ = ("_pool", "_record", "_wrapper", "connection", "expiries", "folds_reset", "pid")

    def __init__(self, pool: Pool, wrapper: Any, record: nesting.Record, *, folds_reset: bool, expiries: int) -> None:
        self._pool: Pool | None = pool
        self._wrapper = wrapper
        self._record = record
        self.folds_reset = folds_reset
        self.expiries = expiries
        """How often the pool's connections had expired when this one was taken."""
        self.connection: Connection = wrapper._con
        """The driver's connection itself, which can still be asked how it stands after it was lost. It does not end
        with the checkout: whoever hands it on sees to it that nobody uses it afterwards."""
        self.pid: int = self.connection.get_server_pid()
        """Process id of the server's side, as in `pg_stat_activity`."""

    @property
    def wrapper(self) -> Connection:
        """The connection as a stranger may have it: after this checkout, and once it was lost, every call raises."""
        return cast("Connection", self._wrapper)  # isinstance() agrees

    def terminate(self) -> None:
        """Cut the connection at once, whatever it does. The server ends the session and frees its locks by itself.

        Does nothing once the connection was given back: it may be somebody else's by then.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            self.cut()  # it may be on its way back
        else:
            nesting.remove(self._record, pool)
            pool._drop(self)

    async def release(self) -> None:
        """Give the connection back. Does nothing the second time.

        One that cannot be given back within the release timeout is cut. Raises nothing but CancelledError, and has
        given the connection back then too.
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            nesting.remove(self._record, pool)
            await pool._take_back(self)

    def cut(self) -> bool:
        """Close the connection, if it still is ours, without waiting for anything. Return whether it was open."""
        was_open = not self.connection.is_closed()
        try:
            self._wrapper.terminate()
        except asyncpg.InterfaceError:
            return False  # it went back, or the driver has cleaned up
        return was_open
