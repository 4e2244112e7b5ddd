"""Time in a process that is played: it passes by itself, and at once when a handler is to run over its time."""

from __future__ import annotations

import asyncio


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time can be moved on: every deadline up to then has come."""

    def __init__(self) -> None:
        super().__init__()
        self._moved_s = 0.0

    def time(self) -> float:
        return super().time() + self._moved_s

    def move(self, seconds: float) -> None:
        """Let time pass at once."""
        self._moved_s += seconds
