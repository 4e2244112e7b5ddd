"""What lies between one process and the server, and all that can happen there.

Every statement passes two points, before it is sent and after its answer has come, at which its lane can be held. A
session can be cut: its client learns of that with its next statement, which the server may have executed, may execute
later, or never got. What the client has let go then lives on at the server as an orphan, lock and transaction
included, until that notices.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import asyncpg

from pools import Checkout, Pool
from tests.invariants.stage import DOOR, Stage, acting
from tests.invariants.witness import Witness

_LOCK_TAKERS = frozenset({"claim", "hold", "let_go"})
_IN_HANDLER = frozenset({"effect", "other"})
_KINDS = (
    ("inbox.look", "claim"),
    ("inbox.hold", "hold"),
    ("inbox.stamp", "stamp"),
    ("start_attempt", "start"),
    ("record_outcome", "record"),
    ("pg_advisory_unlock(", "let_go"),
    ("ROLLBACK TO", "undo"),
    ("BEGIN", "begin"),
    ("COMMIT", "commit"),
    ("ROLLBACK", "leave"),
    ("insert into ledger", "effect"),
)


def kind_of(statement: str) -> str:
    """Return the name of a statement's points: the part of an attempt that it is."""
    return next((kind for sign, kind in _KINDS if sign in statement), "other")


class Fate(Enum):
    """What becomes of the statement whose answer a cut session loses."""

    NEVER = "never"
    NOW = "now"
    LATER = "later"


Execute = Callable[[], Coroutine[Any, Any, Any]]


class Session:
    """One server session as its process sees it: what the product takes for the driver's connection."""

    def __init__(self, line: Line, checkout: Checkout) -> None:
        self.pid = checkout.pid
        self.fate: Fate | None = None
        self.pending: Execute | None = None
        self._line = line
        self._checkout = checkout
        self._real = checkout.connection
        self._noticed = False

    @property
    def lives(self) -> bool:
        """Whether process and server both know it."""
        return self.fate is None and not self._real.is_closed()

    @property
    def is_over(self) -> bool:
        """Whether it has ended at the server."""
        return self._real.is_closed()

    def cut(self, fate: Fate) -> None:
        """Lose the line; the client notices at its next statement, of which this becomes."""
        self.fate = fate

    def is_closed(self) -> bool:
        """What the client believes."""
        return self._noticed or self._real.is_closed()

    def is_in_transaction(self) -> bool:
        """What the client believes."""
        return self._real.is_in_transaction()

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """As the driver's."""
        return await self._call(query, lambda: self._real.execute(query, *args, timeout=timeout))

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """As the driver's."""
        return await self._call(query, lambda: self._real.fetchrow(query, *args, timeout=timeout))

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None, column: int = 0) -> Any:
        """As the driver's."""
        return await self._call(query, lambda: self._real.fetchval(query, *args, timeout=timeout, column=column))

    async def _execute(self, query: str, *args: Any, **kwargs: Any) -> Any:
        """What `Tx` calls, to have no simple protocol."""
        real: Any = self._real
        return await self._call(query, lambda: real._execute(query, *args, **kwargs))

    async def release(self) -> None:
        """Give it back to the pool, unless it is lost."""
        self._line.leaves(self)
        if self.fate is None:
            await self._checkout.release()
        else:
            self._line.orphan(self)

    def terminate(self) -> None:
        """Let it go. The server learns of it at once, unless the line is cut or swallows what ends a session."""
        self._line.leaves(self)
        if self.fate is not None or self._line.lingers or self._line.dead:
            self._noticed = True
            self._line.orphan(self)
        else:
            self.end()

    def end(self) -> None:
        """End it at both ends. The stage waits until the server is done with it."""
        self._checkout.terminate()
        self._line.ends(self.pid)

    async def _call(self, query: str, execute: Execute) -> Any:
        actor = acting()
        if actor is None:  # housekeeping, which nobody holds
            return await execute()
        kind = kind_of(query)
        self.pending = execute
        in_handler = kind in _IN_HANDLER
        await actor.passes(f"{kind}.before", in_handler=in_handler)
        if self._noticed:
            raise asyncpg.InterfaceError("connection is closed")
        if self.fate is not None:
            self._noticed = True
            if self.fate is not Fate.LATER:
                self.pending = None
            if self.fate is Fate.NOW:
                with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
                    await execute()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        self.pending = None
        try:
            if kind in _LOCK_TAKERS and self._line.has_closed_doors:
                return await self._through_the_door(execute)
            return await execute()
        finally:
            # After an error too: a dead process learns nothing more.
            await actor.passes(f"{kind}.after", in_handler=in_handler)

    async def _through_the_door(self, execute: Execute) -> Any:
        """Execute; stand at the door as long as the server keeps the statement there."""
        actor = acting()
        assert actor is not None
        running = asyncio.ensure_future(execute())
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=0.002)
                if not running.done() and await self._line.witness.waits_at_door(self.pid):
                    with actor.standing(DOOR):
                        await asyncio.wait({running})
        except asyncio.CancelledError:
            running.cancel()
            raise
        return running.result()


@dataclass(frozen=True, slots=True)
class LineCheckout:
    """What the product takes for the pool's checkout."""

    connection: Session

    async def release(self) -> None:
        """As the pool's."""
        await self.connection.release()

    def terminate(self) -> None:
        """As the pool's."""
        self.connection.terminate()


class Line:
    """The line of one pool of one process: what the product takes for the pool.

    :param lingers: the server does not learn that a session was let go.
    """

    def __init__(self, pool: Pool, stage: Stage, witness: Witness) -> None:
        self.pool = pool
        self.witness = witness
        self.lingers = False
        self.dead = False
        self.has_closed_doors = False
        self.orphans: list[Session] = []
        self.used: dict[str, Session] = {}
        self._stage = stage

    async def checkout(self, *, folds_reset: bool = False) -> LineCheckout:
        """As the pool's."""
        session = Session(self, await self.pool.checkout(folds_reset=folds_reset))
        actor = acting()
        if actor is not None:
            self.used[actor.name] = session
        return LineCheckout(session)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        """As the pool's."""
        async with self.pool.acquire() as connection:
            yield connection

    def leaves(self, session: Session) -> None:
        """Note that a session is in nobody's hands any more."""
        self.used = {name: used for name, used in self.used.items() if used is not session}

    def orphan(self, session: Session) -> None:
        """Leave a session to the server, unless that has ended it already."""
        if session not in self.orphans:
            if session.is_over:
                session.end()
            else:
                self.orphans.append(session)

    def ends(self, pid: int) -> None:
        """Let the stage wait until a session has ended at the server, which may be busy with its last statement."""

        async def gone() -> bool:
            await self.witness.terminate(pid)
            return await self.witness.is_gone(pid)

        self._stage.settling.append(gone)

    async def kill(self, session: Session) -> None:
        """End a session at the server, as an administrator does, and wait until its client could know."""
        await self.witness.terminate(session.pid)
        real = session._real

        async def known() -> bool:
            return real.is_closed() and await self.witness.is_gone(session.pid)

        self._stage.settling.append(known)

    async def execute(self, session: Session) -> None:
        """Let an orphan's last statement reach the server now."""
        execute, session.pending = session.pending, None
        assert execute is not None
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await execute()

    def end(self, session: Session) -> None:
        """Let the server notice that an orphan has no client any more."""
        self.orphans.remove(session)
        session.end()
