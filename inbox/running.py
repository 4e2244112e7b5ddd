"""Run one handler once, and say how it ended as a value.

Handlers run in tasks that belong to the product: a lost broker channel never cancels one. Only the handler's own
time, or a shutdown whose deadline has passed, does. A handler that does not end when it is cancelled is abandoned:
its tx is dead, its session is terminated, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from inbox.envelope import Attempt
from inbox.tx import Tx

Handle: TypeAlias = Callable[[Attempt, Tx], Awaitable[None]]
"""What the machine calls for an attempt."""

CANCEL_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler is done."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The handler's time was up. `stuck`: it did not end when it was cancelled."""

    after_s: float
    stuck: bool


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A shutdown cancelled the handler, or did not start it."""

    stuck: bool


Ending: TypeAlias = Returned | Raised | TimedOut | GivenUp


class Runner:
    """The handlers that run in this process for one consumer."""

    def __init__(self) -> None:
        self._live: set[asyncio.Task[Ending]] = set()
        self._cancelled: set[asyncio.Task[Ending]] = set()
        self._abandoned: set[asyncio.Task[Ending]] = set()
        self._giving_up = False

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return len(self._live)

    @property
    def abandoned(self) -> int:
        """How many handlers did not end when they were cancelled, and still run."""
        return len(self._abandoned)

    def give_up(self) -> None:
        """Cancel what runs and start nothing more: the shutdown's deadline has passed."""
        self._giving_up = True
        for task in self._live:
            if task.cancel("the process is stopping"):
                self._cancelled.add(task)

    async def run(self, handle: Handle, attempt: Attempt, tx: Tx, *, timeout_s: float) -> Ending:
        """Call the handler and wait for its end.

        A handler that returns although it was cancelled did not necessarily do all of its work, so the cancellation
        counts, not the return.
        """
        if self._giving_up:
            return GivenUp(stuck=False)
        task = asyncio.create_task(_call(handle, attempt, tx))
        self._live.add(task)
        try:
            await asyncio.wait((task,), timeout=timeout_s)
            if task in self._cancelled:
                return GivenUp(stuck=not await self._ended(task))
            if task.done():
                return (
                    Raised(asyncio.CancelledError("the handler was cancelled from inside"))
                    if task.cancelled()
                    else task.result()
                )
            task.cancel("the handler's time is up")
            return TimedOut(after_s=timeout_s, stuck=not await self._ended(task))
        except asyncio.CancelledError:
            task.cancel("the lane is stopping")
            await self._ended(task)
            raise
        finally:
            self._live.discard(task)
            self._cancelled.discard(task)

    async def _ended(self, task: asyncio.Task[Ending]) -> bool:
        done, _ = await asyncio.wait((task,), timeout=CANCEL_WAIT_S)
        if not done:
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)
        return bool(done)


async def _call(handle: Handle, attempt: Attempt, tx: Tx) -> Ending:
    try:
        await handle(attempt, tx)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        # SystemExit too, and whatever is meant to get past `except Exception`: left alone it would take the lane, or
        # the event loop, and every other attempt with it.
        return Raised(_alone(error))
    return Returned()


def _alone(error: BaseException) -> BaseException:
    """Return what a task group wrapped, if that is one error: an answer given inside of one is an answer too."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
