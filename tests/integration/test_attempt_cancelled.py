"""A lane may be cancelled wherever it waits."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from inbox import Policy
from inbox.outcomes import (
    Absorbed,
)
from inbox.states import State
from tests.support.databases import Database
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    Handler,
    StartProcess,
    message,
    processed_in_the_end,
    standing,
)


class CancelledAt:
    """Awaits a coroutine and cancels its task at the n-th time that it waits.

    `before`: what it waits for is cancelled with it. Otherwise that has come, and the cancellation with it.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], waits: int, *, before: bool) -> None:
        self._work = work
        self._waits = waits
        self._before = before
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        waited = 0
        proceed: Callable[[], Any] = lambda: self._work.send(None)  # noqa: E731
        while True:
            try:
                future = proceed()
            except StopIteration as done:
                return done.value
            waited += 1
            if waited == self._waits and self._before:
                self.cancelled = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield future
            except BaseException as error:
                proceed = functools.partial(self._work.throw, error)
                continue
            if waited == self._waits:
                self.cancelled = True
                proceed = functools.partial(self._work.throw, asyncio.CancelledError())
            else:
                proceed = functools.partial(self._work.send, None)


async def waits_for(cancelled: CancelledAt) -> Any:
    return await cancelled


@HOT_AND_COUNTED
@pytest.mark.parametrize("ending", [None, ValueError("no")], ids=["success", "failure"])
@pytest.mark.parametrize("before", ["nothing", "a receipt", "a row", "a terminal row"])
async def test_a_lane_that_is_cancelled_wherever_it_waits_leaves_no_session_behind_and_loses_nothing(
    process: StartProcess, database: Database, before: str, ending: BaseException | None, redelivered: bool
) -> None:
    one = await process(lanes=1, headroom=0)
    patient = Policy(max_attempts=9, pacing_s=(0.0,))
    for waits, at_once in ((waits, at_once) for waits in range(1, 100) for at_once in (True, False)):
        odd = message(f"cancelled at wait {waits}, {at_once}")
        if before == "a receipt":
            await one.attempt(odd, Handler(writes=False))
        elif before != "nothing":
            policy = patient if before == "a row" else Policy(max_attempts=1, pacing_s=(0.0,))
            await one.attempt(odd, Handler(ValueError("no"), writes=False), policy)
        handler = Handler(*[] if ending is None else [ending], message_id=odd.message_id)
        attempt = CancelledAt(one.attempt(odd, handler, patient, redelivered=redelivered), waits, before=at_once)
        await asyncio.gather(asyncio.ensure_future(waits_for(attempt)), return_exceptions=True)
        assert one.pool.statistics().in_use == 0, f"a session is lost after wait {waits}"
        await one.pay()
        settled = await processed_in_the_end(one, odd)
        if before == "a terminal row":
            assert settled == Absorbed(State.EXHAUSTED)
        else:
            found = await standing(database, odd)
            assert (found.receipts, found.state) == (1, None)
            assert found.effects == (0 if before == "a receipt" else 1)
        if not attempt.cancelled:
            assert waits > 3, "nothing was cancelled, so nothing is proven"
            return
    raise AssertionError("an attempt cannot wait that often")
