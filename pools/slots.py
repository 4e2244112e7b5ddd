"""Who may hold one of a limited number of things: so many at a time as the limit says, in the order of asking.

A slot is held from `take` until `give`, however the taking task ends: one that is cancelled in the moment in which it
is served hands its slot on. The limit may move; lowered below what is taken it serves nobody until enough came back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Slots:
    """A queue for `limit` slots.

    :param limit: how many may be taken at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._closed = False
        self._waiters: deque[asyncio.Future[bool]] = deque()

    @property
    def limit(self) -> int:
        """How many may be taken at a time now."""
        return self._limit

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def try_take(self) -> bool:
        """Take a slot if one is free and nobody waits for it."""
        if self._closed or self._waiters or self._taken >= self._limit:
            return False
        self._taken += 1
        return True

    async def take(self, *, first: bool = False) -> bool:
        """Wait for a slot. Return False if there will be none, because of `close`.

        :param first: before all others that wait: for one who was served already and came back empty-handed.
        """
        if self._closed or self.try_take():
            return not self._closed
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        (self._waiters.appendleft if first else self._waiters.append)(waiter)
        # Those in front may have been cancelled, and their tasks not have run since.
        self._serve()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # it may have been passed over and dropped already
                    self._waiters.remove(waiter)
            elif waiter.result():
                self.give()
            raise

    def give(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        self._serve()

    def move_limit(self, limit: int) -> None:
        """Let so many be taken at a time from now on."""
        self._limit = limit
        self._serve()

    def close(self) -> None:
        """Serve nobody any more, and tell those who wait. What is taken may still be given back."""
        self._closed = True
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(False)

    def _serve(self) -> None:
        while self._waiters and self._taken < self._limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._taken += 1
                waiter.set_result(True)
