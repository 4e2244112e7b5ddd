"""Who runs beside whom in one process.

A message that was being attempted when its process died is a suspect: its next attempt runs with no other attempt in
the process, so that another death is its own doing and nobody else's. Ordinary attempts share the process; a suspect
waits until it is alone. A waiting suspect goes first, or a busy process would never be empty.

An attempt whose session was lost is over, but as long as its end is not on record, a death of the process would be
taken for its doing. So it stays present until then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Company:
    """A gate that many attempts pass together and a suspect passes alone.

    Presence is taken before the claim, so nobody waits here while holding a connection or a key. Passing an open gate
    costs no turn of the event loop.
    """

    def __init__(self) -> None:
        self._present = 0
        self._alone = False
        self._stay_alone = 0
        self._ordinary: deque[asyncio.Future[None]] = deque()
        self._suspects: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Be one of many."""
        if self._alone or self._stay_alone or self._suspects:
            await self._queue(self._ordinary, self._leave_shared)
        else:
            self._present += 1
        try:
            yield
        finally:
            self._leave_shared()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be the only one. Waits for those who are present: each is bounded by its handler timeout."""
        if self._alone or self._stay_alone or self._present or self._suspects:
            await self._queue(self._suspects, self._leave_alone)
        else:
            self._alone = True
        try:
            yield
        finally:
            self._leave_alone()

    def stay(self, *, alone: bool) -> Callable[[], None]:
        """Keep the place of who is inside, also beyond its block. Return what gives it up; once is enough.

        :param alone: whether it is the only one.
        """
        staying = True
        if alone:
            self._stay_alone += 1
        else:
            self._present += 1

        def leave() -> None:
            nonlocal staying
            if not staying:
                return
            staying = False
            if alone:
                self._stay_alone -= 1
            else:
                self._present -= 1
            self._admit()

        return leave

    async def _queue(self, waiting: deque[asyncio.Future[None]], leave: Callable[[], None]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                leave()  # the turn came together with the cancellation: pass it on
            else:
                self._admit()  # it may have been this one that the others had to wait for
            raise

    def _leave_shared(self) -> None:
        self._present -= 1
        self._admit()

    def _leave_alone(self) -> None:
        self._alone = False
        self._admit()

    def _admit(self) -> None:
        """Let in whoever may go now; presence is counted for them at once, so that no newcomer slips in between."""
        if self._alone or self._stay_alone:
            return
        _drop_cancelled(self._suspects)
        if self._suspects:
            if not self._present:
                self._alone = True
                self._suspects.popleft().set_result(None)
            return
        _drop_cancelled(self._ordinary)
        while self._ordinary:
            self._present += 1
            self._ordinary.popleft().set_result(None)


def _drop_cancelled(waiting: deque[asyncio.Future[None]]) -> None:
    """Forget turns whose task was cancelled and has not run since: they would take a place and never give it back."""
    for turn in [turn for turn in waiting if turn.cancelled()]:
        waiting.remove(turn)
