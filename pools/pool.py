"""A pool of connections with a deadline on everything: getting one, giving one back, closing.

It opens connections when they are needed (none at start), tags them with its application_name, and resets a session
when it is known who gets it next: a caller that folds the reset into its own first statement pays no round trip for it.
Everybody else gets a session like new, and leaves one like new.

A server that refuses more connections makes the pool smaller, not useless: it works with those that are open, tries one
more from time to time, and is back at its size when that succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from weakref import WeakSet

import asyncpg

from pools import nesting
from pools.checkout import Checkout
from pools.errors import NestedAcquire, PoolNotOpen, PoolTimeout
from pools.opening import Connection, Opener
from pools.room import Room
from pools.session import IS_LIKE_NEW, UNFOLDED_RESET
from pools.slots import Slots
from pools.spec import PoolSpec
from pools.statistics import PoolStatistics

_IDLE_S = 300.0
_CLOSE_DEADLINE_S = 5.0
_MADE_ROOM_S = 0.05

_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class Pool:
    """The connections of one purpose.

    :param dsn: where the database is.
    :param make_room: asked when the server refuses this pool its only connection; returns whether somebody else has
        given up one of his, which may take the server a moment.
    """

    def __init__(self, dsn: str, spec: PoolSpec, *, make_room: Callable[[], bool] = lambda: False) -> None:
        self.spec = spec
        self._make_room = make_room
        self._dsn = dsn
        self._pool: asyncpg.Pool[Any] | None = None
        self._slots = Slots(spec.size)
        self._room = Room(self._slots, spec.size)
        self._opener = Opener(spec)
        self._idle: WeakSet[Connection] = WeakSet()
        # Last used by somebody who leaves the reset to the next one.
        self._dirty: WeakSet[Connection] = WeakSet()
        self._expiries = 0
        self._opening = 0
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
        """Make the pool ready. It opens no connection yet: processes that start together must not storm the server.

        :raises PoolNotOpen: it was closed, which is for good.
        """
        if self._pool is not None:
            if self._pool.is_closing():
                raise PoolNotOpen(pool=self.name)
            return
        # No floor of open connections: the driver would restore it in the background, with a traceback a second while
        # the server is away.
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self.spec.size,
            max_inactive_connection_lifetime=_IDLE_S,
            connect=self._connect,
            reset=self._on_return,
        )

    async def checkout(self, *, folds_reset: bool = False) -> Checkout:
        """Take a connection.

        :param folds_reset: the caller sends `SESSION_RESET` in front of its own first statement, so this does not.
        :raises PoolTimeout: none became free in time.
        :raises NestedAcquire: this work holds as many as it may.
        :raises PoolNotOpen: the pool is not open.
        :raises asyncpg.PostgresError, OSError: a new connection was needed and could not be opened (TimeoutError, which
            is an OSError: within the connect timeout).
        """
        held = nesting.record()
        if held.get(self, 0) > self.spec.nested:
            raise NestedAcquire(pool=self.name, nested=self.spec.nested)
        began = monotonic()
        nesting.add(held, self)
        try:
            checkout = await self._checkout(held, began, folds_reset=folds_reset)
        except BaseException as error:
            nesting.remove(held, self)
            if isinstance(error, PoolTimeout):
                self._timeouts += 1
                self._waited(began)
            raise
        self._acquires += 1
        self._waited(began)
        return checkout

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """Take a connection with a session like new for the length of a block. Raises as `checkout` does."""
        checkout = await self.checkout()
        try:
            yield checkout.wrapper
        finally:
            await checkout.release()

    async def expire(self) -> None:
        """Let go of every connection, so that the next ones may reach another server: idle ones now, busy ones when
        they are given back."""
        if self._pool is not None:
            self._expiries += 1
            await self._pool.expire_connections()
            for connection in list(self._idle):
                connection.terminate()

    def give_up_one(self) -> bool:
        """Let go of one connection for somebody who has none: an idle one now, else the next that is given back.

        :return: whether there was one to spare; the last one is not.
        """
        connections = 0 if self._pool is None else self._pool.get_size() + self._opening
        if connections <= 1:
            return False
        self._room.make_do_with(connections - 1)
        idle = next((connection for connection in self._idle if not connection.is_closed()), None)
        if idle is not None:
            idle.terminate()
        return True

    def statistics(self) -> PoolStatistics:
        """Return the pool as it is now."""
        return PoolStatistics(
            name=self.name,
            application_name=self.spec.application_name,
            size=self.spec.size,
            limit=self._slots.limit,
            open=0 if self._pool is None else self._pool.get_size(),
            in_use=self._slots.taken,
            idle=0 if self._pool is None else self._pool.get_idle_size(),
            waiting=self._slots.waiting,
            acquires=self._acquires,
            timeouts=self._timeouts,
            waited_s_total=self._waited_s_total,
            waited_s_max=self._waited_s_max,
            refusals=self._room.refusals,
            terminated=self._terminated,
        )

    async def close(self, deadline_s: float = _CLOSE_DEADLINE_S) -> None:
        """Close all connections; those that are still checked out at the deadline are cut.

        Who waits for one gets `PoolNotOpen` at once. What a cut connection was doing ends on the server within its
        check interval.
        """
        pool = self._pool
        if pool is None:
            return
        self._slots.close()
        self._room.close()
        try:
            async with asyncio.timeout(deadline_s):
                await pool.close()
        except TimeoutError:
            self._terminated += self._slots.taken
        except _DRIVER_ERRORS:
            pass  # one connection did not close in order, and the driver has cut them all

    # Taking.

    async def _checkout(self, held: nesting.Record, began: float, *, folds_reset: bool) -> Checkout:
        while True:
            wrapper = await self._take(began)
            checkout = Checkout(self, wrapper, held, folds_reset=folds_reset, expiries=self._expiries)
            if folds_reset or checkout.connection not in self._dirty:
                return checkout
            try:
                await self._make_like_new(checkout.connection)
            except (*_DRIVER_ERRORS, _NotLikeNew) as error:
                # It died in the pool, or is spoilt: no fault of the server's, so another one may do.
                self._drop(checkout)
                if isinstance(error, OSError) and monotonic() - began >= self.spec.acquire_timeout_s:
                    raise
            except BaseException:
                self._drop(checkout)
                raise
            else:
                return checkout

    async def _take(self, began: float) -> Any:
        pool = self._pool
        if pool is None:
            raise PoolNotOpen(pool=self.name)
        came_back, pause_s = False, _MADE_ROOM_S
        while True:
            await self._take_slot(began, first=came_back)
            try:
                # Never waits for anything but a connection to be opened, since a slot is held.
                wrapper = await pool.acquire()
            except asyncpg.TooManyConnectionsError as refusal:
                works_with_fewer = self._room.refused(refusal, others=pool.get_size() + self._opening)
                self._slots.give()
                if monotonic() - began >= self.spec.acquire_timeout_s:
                    raise
                if not works_with_fewer:
                    if not self._make_room():
                        raise
                    await asyncio.sleep(pause_s)
                    pause_s *= 2
                came_back = True
            except BaseException as error:
                self._slots.give()
                if isinstance(error, asyncpg.InterfaceError) and pool.is_closing():
                    raise PoolNotOpen(pool=self.name) from error
                raise
            else:
                self._idle.discard(wrapper._con)  # type: ignore[attr-defined]
                return wrapper

    async def _take_slot(self, began: float, *, first: bool) -> None:
        if self._slots.try_take():
            return
        try:
            async with asyncio.timeout(self.spec.acquire_timeout_s - (monotonic() - began)):
                served = await self._slots.take(first=first)
        except TimeoutError:
            raise PoolTimeout(
                pool=self.name,
                size=self.spec.size,
                limit=self._slots.limit,
                waiters=self._slots.waiting,
                waited_s=monotonic() - began,
            ) from self._room.refusal
        if not served:
            raise PoolNotOpen(pool=self.name)

    def _waited(self, began: float) -> None:
        waited_s = monotonic() - began
        self._waited_s_total += waited_s
        self._waited_s_max = max(self._waited_s_max, waited_s)

    # Opening.

    async def _connect(self, *args: Any, **kwargs: Any) -> Connection:
        self._opening += 1
        try:
            connection = await self._opener.open(*args, **kwargs)
        finally:
            self._opening -= 1
        if self._pool is None or self._pool.is_closing():
            # The driver would close it in order here, and wait for that without a limit.
            connection.terminate()
            raise PoolNotOpen(pool=self.name)
        self._room.opened()
        return connection

    # Taking back.

    def _drop(self, checkout: Checkout) -> None:
        """Cut a connection and let the next one have its place."""
        self._terminated += checkout.cut()
        self._slots.give()

    async def _take_back(self, checkout: Checkout) -> None:
        pool, connection = self._pool, checkout.connection
        assert pool is not None  # it was open when this was taken
        if checkout.folds_reset:
            self._dirty.add(connection)
        try:
            if connection.is_closed() or pool.get_size() > self._slots.limit:
                checkout.cut()
                return
            async with asyncio.timeout(self.spec.release_timeout_s):
                # What is known of its transaction is from before a statement that was cancelled since.
                await connection._protocol._wait_for_cancellation()  # type: ignore[attr-defined]  # it has no public way
                if connection.is_in_transaction():
                    # The driver would do the same, and report it to the event loop as an error.
                    await connection.execute("ROLLBACK")
                if checkout.expiries != self._expiries:
                    await connection.close()
                    return
                if not checkout.folds_reset:
                    await self._make_like_new(connection)
                # Next to nothing is left to wait for: the driver shields this from a cancellation, and leaves the error
                # of a connection that is cut meanwhile to nobody. At most it closes one that has served its time.
                await pool.release(checkout._wrapper, timeout=self.spec.release_timeout_s)
        except BaseException as error:
            # Whatever keeps it from being fit for the next user: it is cut, and who gave it back has lost nothing.
            self._terminated += 1
            checkout.cut()
            if not isinstance(error, Exception):
                raise
        finally:
            self._slots.give()

    async def _on_return(self, connection: Connection) -> None:
        """In place of the driver's reset query, which was done if it had to be."""
        self._idle.add(connection)

    async def _make_like_new(self, connection: Connection) -> None:
        if not self.spec.session.pooler:
            try:
                tag = await connection.execute(UNFOLDED_RESET, timeout=self.spec.release_timeout_s)
            except TimeoutError as error:
                raise TimeoutError(
                    f"pool {self.name}: a session did not answer within {self.spec.release_timeout_s:g} s"
                ) from error
            if tag != IS_LIKE_NEW:
                raise _NotLikeNew
        self._dirty.discard(connection)


class _NotLikeNew(Exception):
    """Something is left in a session that nothing undoes."""
