"""Who holds how many connections of which pool, so that nobody waits for what he keeps himself.

The record belongs to a piece of work: the task that began it and all tasks that came out of it. Each attempt begins a
fresh one. Outside of any, each task has its own: tasks that share nothing but an ancestor may each hold a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias
from weakref import WeakKeyDictionary

Record: TypeAlias = dict[object, int]

_of_work: ContextVar[Record | None] = ContextVar("pools_held", default=None)
_of_tasks: WeakKeyDictionary[asyncio.Task[object], Record] = WeakKeyDictionary()


@contextmanager
def work() -> Iterator[None]:
    """Begin a piece of work that holds nothing yet; connections of all tasks that come out of it count together."""
    token = _of_work.set({})
    try:
        yield
    finally:
        _of_work.reset(token)


def record() -> Record:
    """Return the current work's record: for each pool, how many of its connections are held."""
    found = _of_work.get()
    if found is None:
        task = asyncio.current_task()
        assert task is not None  # connections are taken by coroutines, which run in tasks
        found = _of_tasks.setdefault(task, {})
    return found


def add(held: Record, pool: object) -> None:
    """Count one more connection."""
    held[pool] = held.get(pool, 0) + 1


def remove(held: Record, pool: object) -> None:
    """Count one connection less."""
    if held[pool] == 1:
        del held[pool]
    else:
        held[pool] -= 1
