"""The event loop that the product runs on: uvloop where it is installed, else the standard library's."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LEFT_WAIT_S = 1.0


def run_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine on a new loop, and return what it returns."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_and_nothing_else(work))


async def _and_nothing_else(work: Coroutine[Any, Any, T]) -> T:
    """Do the work, and end the process if tasks are left that cannot be cancelled: closing the loop waits for them.

    Such tasks are abandoned handlers. Their sessions are gone and nobody waits for them; a process that has stopped
    must not live on for their sake.
    """
    answer = await work
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, stuck = await asyncio.wait(left, timeout=_LEFT_WAIT_S)
        if stuck:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(answer if isinstance(answer, int) else 0)
    return answer


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # not on Windows, and not needed for correctness anywhere
        return None
    return uvloop.new_event_loop
