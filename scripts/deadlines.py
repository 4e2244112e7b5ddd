"""Waiting for facts: every wait of a demo or a soak has a deadline and says what it waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class RunFailed(Exception):
    """A run cannot go on; the message says why, and what to do where something can be done."""


async def until(
    fact: Callable[[], bool | Awaitable[bool]],
    *,
    within_s: float,
    what: Callable[[], str],
    moving: Callable[[], object] = lambda: None,
    every_s: float = 0.05,
) -> None:
    """Ask until the fact holds.

    Args:
        fact: What is asked.
        within_s: Seconds until it must hold.
        what: Says what was waited for, and how far it came.
        moving: A value that shows progress: the time begins anew whenever it changes.
        every_s: Seconds between two questions.

    Raises:
        RunFailed: It did not hold in time.
    """
    deadline, seen = time.monotonic() + within_s, moving()
    while True:
        answer = fact()
        if answer if isinstance(answer, bool) else await answer:
            return
        if (now := moving()) != seen:
            deadline, seen = time.monotonic() + within_s, now
        elif time.monotonic() > deadline:
            raise RunFailed(f"waited {within_s:g} s in vain for {what()}")
        await asyncio.sleep(every_s)
