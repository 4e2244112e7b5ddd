"""Where each lane rests. Between two steps of a state machine every lane stands still at a point that has a name.

A lane comes to rest after so many points as it was told, in its handler, at a closed gate (company, breaker, the
server's door), or idle. Whoever moves lanes waits until all rest again, so a run is the same each time it is played.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from inbox import Company
from tests.invariants.script import Verdict

if TYPE_CHECKING:
    from tests.invariants.broker import Copy

IDLE = "idle"
HANDLER = "handler"
COMPANY = "company"
BREAKER = "breaker"
DOOR = "door"
ENDED = "ended"

QUIET_WITHIN_S = 10.0


class Actor:
    """One lane, and what it was told: how far to go, and what its handler shall do.

    `at` is where it rests; None while it moves. `is_hurried`: its handler's time runs, so it does not rest in there.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.at: str | None = None
        self.verdict: Verdict | None = None
        self.key: UUID | None = None
        self.copy: Copy | None = None
        self.is_hurried = False
        self.frozen = False
        self._points: int | None = None
        self._stage = stage
        self._gate: asyncio.Future[None] | None = None
        self._standing: object = None

    def __repr__(self) -> str:
        return f"{self.name} at {self.at}"

    @property
    def is_held(self) -> bool:
        """Whether it rests until `go`."""
        return self._gate is not None and not self.frozen

    @property
    def is_attempting(self) -> bool:
        """Whether it is inside the company's gate."""
        outside = (IDLE, ENDED, COMPANY, BREAKER)
        return self.at not in outside and not (self.at or "").startswith(("park", "ack", "requeue"))

    async def passes(self, point: str, *, in_handler: bool = False) -> None:
        """Reach a point: rest there if it was to go no farther, or if its process is dead."""
        if self.frozen:
            await self.rests(point)
        elif self._points is not None and not (in_handler and self.is_hurried):
            if self._points == 0:
                self._points = None
                await self.rests(point)
            else:
                self._points -= 1

    async def rests(self, point: str) -> None:
        """Rest at a point until `go`."""
        self._gate = asyncio.get_running_loop().create_future()
        with self.standing(point):
            try:
                await self._gate
            finally:
                self._gate = None

    def go(self, points: int | None = None) -> None:
        """Go on, past so many points, or to the end; the verdict, if its handler rests, must be there by now."""
        assert self._gate is not None, f"{self} is not held"
        self._points = points
        self.at = None
        if not self._gate.done():
            self._gate.set_result(None)

    def starts(self, key: UUID, points: int | None, verdict: Verdict | None, *, copy: Copy, is_hurried: bool) -> None:
        """Leave the idle state: a delivery of this message, by this copy, is there."""
        assert self.at == IDLE, f"{self} is not idle"
        self.key, self.copy = key, copy
        self._points, self.verdict, self.is_hurried = points, verdict, is_hurried
        self.at = None

    def ends(self) -> None:
        """Rest for ever: the lane has ended."""
        self.at, self._standing = ENDED, None
        self._stage.moved()

    @contextmanager
    def standing(self, point: str) -> Iterator[None]:
        """Stand at a point, without a gate of the stage's own."""
        self.at = point
        self._stage.moved()
        self._standing = standing = object()
        try:
            yield
        finally:
            if self._standing is standing:  # what its lane has left behind may end later than its lane goes on
                self.at = None


_acting: ContextVar[Actor | None] = ContextVar("acting", default=None)


def acting() -> Actor | None:
    """Return the lane that this task works for; None for the machine itself."""
    return _acting.get()


async def play(actor: Actor, work: Awaitable[None]) -> None:
    """Run a lane as an actor: everything that it does is done in this task's context."""
    _acting.set(actor)
    try:
        await work
    finally:
        actor.ends()


class Stage:
    """All lanes of one example.

    `settling` are questions to be answered by yes before the stage is quiet.
    """

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.settling: list[Callable[[], Awaitable[bool]]] = []
        self._moved = asyncio.Event()

    def actor(self, name: str) -> Actor:
        """Return a new lane's actor."""
        actor = Actor(self, name)
        self.actors.append(actor)
        return actor

    def moved(self) -> None:
        """Say that a lane came to rest."""
        self._moved.set()

    async def quiet(self) -> None:
        """Wait until every lane rests and nothing on the server is on its way to its end."""
        deadline = monotonic() + QUIET_WITHIN_S
        while True:
            self._moved.clear()
            await self._breath()
            if all(actor.at is not None for actor in self.actors):
                if not self.settling:
                    return
                self.settling = [settled for settled in self.settling if not await settled()]
                continue
            if monotonic() > deadline:
                raise AssertionError(f"these lanes come to no rest: {[a for a in self.actors if a.at is None]}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await self._moved.wait()
            self.settling = [settled for settled in self.settling if not await settled()]

    @staticmethod
    async def _breath() -> None:
        """Let tasks run whose turn has come by a rest of others."""
        for _ in range(5):
            await asyncio.sleep(0)


class WatchedCompany(Company):
    """The real gate; the stage sees who waits before it."""

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Be one of many."""
        async with _seen(super().shared()):
            yield

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be the only one."""
        async with _seen(super().alone()):
            yield


@asynccontextmanager
async def _seen(gate: contextlib.AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
    actor = acting()
    assert actor is not None
    async with contextlib.AsyncExitStack() as stack:
        with actor.standing(COMPANY):
            await stack.enter_async_context(gate)
        yield
