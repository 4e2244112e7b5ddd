"""Tasks that run beside the work and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

Start: TypeAlias = Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task under a name."""


@asynccontextmanager
async def background() -> AsyncIterator[Start]:
    """Yield what starts tasks; cancel them all when the block ends, and wait for their end.

    A task that fails ends the block: what runs beside the work is needed for it.
    """
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []

        def start(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            task = group.create_task(work, name=name)
            tasks.append(task)
            return task

        try:
            yield start
        finally:
            for task in reversed(tasks):
                task.cancel()
