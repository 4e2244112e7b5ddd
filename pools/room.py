"""How much room the server gives a pool: all of its size, until it refuses a connection.

Then the pool makes do with what is open, and so waits for those instead of asking a crowded server again and again. One
more is allowed from time to time; each connection that is opened doubles what is allowed. So a server that has room
again is noticed within a second, and one that has none gets one request a second.
"""

from __future__ import annotations

import asyncio

import asyncpg

from pools.slots import Slots

_ONE_MORE_EACH_S = 1.0


class Room:
    """Moves the limit of a pool's slots as the server refuses and opens connections.

    :param size: the limit while nothing is refused.
    """

    def __init__(self, slots: Slots, size: int) -> None:
        self._slots = slots
        self._size = size
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: asyncpg.TooManyConnectionsError | None = None
        self.refusals = 0
        """How often the server has refused a connection."""

    @property
    def refusal(self) -> asyncpg.TooManyConnectionsError | None:
        """The server's last word, while it keeps the pool below its size."""
        return self._refusal if self._slots.limit < self._size else None

    def refused(self, refusal: asyncpg.TooManyConnectionsError, *, others: int) -> bool:
        """Make do with `others`, the connections that are open or about to be. Return whether there are any."""
        self.refusals += 1
        self._refusal = refusal
        self.make_do_with(others)
        return others > 0

    def make_do_with(self, connections: int) -> None:
        """Hold no more than so many for now, but one at least."""
        self._slots.move_limit(min(self._slots.limit, max(1, connections)))
        if self._timer is None:
            self._set_timer()

    def opened(self) -> None:
        """Take an opened connection as a sign that there is room."""
        if self._slots.limit < self._size:
            self._slots.move_limit(min(self._size, 2 * self._slots.limit))

    def close(self) -> None:
        """Leave the limit alone from now on."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_ONE_MORE_EACH_S, self._allow_one_more)

    def _allow_one_more(self) -> None:
        self._timer = None
        if self._slots.limit < self._size:
            self._slots.move_limit(self._slots.limit + 1)
            self._set_timer()
