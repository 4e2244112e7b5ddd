"""Who holds how many connections of which pool, so that nobody waits for what he keeps himself.

The record belongs to a piece of work: the task that began it and all tasks that came out of it. Each attempt begins a
fresh one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_held: ContextVar[dict[int, int] | None] = ContextVar("pools_held", default=None)


@contextmanager
def work() -> Iterator[None]:
    """Begin a piece of work that holds nothing yet; connections of all tasks that come out of it count together."""
    token = _held.set({})
    try:
        yield
    finally:
        _held.reset(token)


def record() -> dict[int, int] | None:
    """Return this work's record, by the identity of pools; None outside of any."""
    return _held.get()
