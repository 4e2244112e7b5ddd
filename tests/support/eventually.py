"""Waiting for a fact with a deadline: the only place in the tests that sleeps."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_FIRST_S = 0.02
_LONGEST_S = 0.25


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]],
    within_s: float = 10.0,
    *,
    what: str | None = None,
    every_s: float | None = None,
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T], within_s: float = 10.0, *, what: str | None = None, every_s: float | None = None
) -> T: ...


async def eventually(
    condition: Callable[[], Any], within_s: float = 10.0, *, what: str | None = None, every_s: float | None = None
) -> Any:
    """Ask until the condition returns something true, and return that.

    A condition may also assert: its AssertionError counts as "not yet". Any other error passes through at once,
    because a broken question never becomes true.

    Args:
        condition: A function, or a function that returns an awaitable.
        within_s: Seconds until the fact must hold.
        what: The fact in words, for the failure.
        every_s: Seconds between two questions, where a fact may pass by. By default they grow, a fifth of what was
            waited: to ask costs the processor that what is waited for needs.

    Raises:
        AssertionError: The fact did not hold in time; the message tells the last value seen.
    """
    began = time.monotonic()
    deadline = began + within_s
    while True:
        failed: AssertionError | None = None
        seen: object = None
        try:
            value = condition()
            answer = await value if inspect.isawaitable(value) else value
            if answer:
                return answer
            seen = answer
        except AssertionError as error:
            failed = error
        if time.monotonic() >= deadline:
            last = f"it last failed with: {failed}" if failed is not None else f"it was last {seen!r}"
            raise AssertionError(f"{what or _words(condition)} did not hold within {within_s:g} s; {last}") from failed
        waited = time.monotonic() - began
        await asyncio.sleep(min(max(_FIRST_S, waited / 5), _LONGEST_S) if every_s is None else every_s)


async def throughout(
    condition: Callable[[], Awaitable[object]], for_s: float, *, what: str, every_s: float = 0.2
) -> None:
    """Let time pass, and fail as soon as a fact does not hold during it.

    Args:
        condition: A function that returns an awaitable; the fact holds if that becomes true and raises nothing.
        for_s: Seconds during which it must hold.
        what: The fact in words, for the failure.
        every_s: Seconds between two questions.

    Raises:
        AssertionError: It did not hold.
    """
    began = time.monotonic()
    while (passed := time.monotonic() - began) < for_s:
        assert await condition(), f"{what} did not hold after {passed:.1f} of {for_s:g} s"
        await asyncio.sleep(min(every_s, for_s - passed))


def _words(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
