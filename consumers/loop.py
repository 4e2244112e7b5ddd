"""The event loop that the product runs on: uvloop where it is installed, else the standard library's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine on a new loop, and return what it returns."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # not on Windows, and not needed for correctness anywhere
        return None
    return uvloop.new_event_loop
