"""The breaker of a consumer: closed while database and parking can serve it, open while they cannot.

An outage is nobody's message's fault. While the breaker is open no attempt starts and deliveries are held, neither
spun nor counted; a probe with growing, jittered pauses finds out when it is over. A probe that passes closes the
breaker; if the next try fails again, the pauses go on growing from where they were. What has been held for too long
is given back to the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from inbox import Backoff

log = structlog.get_logger(__name__)

Probe = Callable[[], Awaitable[str | None]]
"""Returns None when attempts can be served again, else what is in the way."""

STABLE_S = 10.0
"""A breaker that stayed closed for this long starts with short pauses again."""


class Breaker:
    """One consumer's breaker.

    :param probe: asked while it is open.
    :param first_wait_s: before the first probe; doubles up to `longest_wait_s`, with jitter.
    :param hold_s: open for this long, `give_back` is called once.
    """

    def __init__(
        self,
        consumer: str,
        probe: Probe,
        *,
        first_wait_s: float,
        longest_wait_s: float,
        hold_s: float,
        give_back: Callable[[], Awaitable[None]],
        take_again: Callable[[], None],
    ) -> None:
        self._consumer = consumer
        self._probe = probe
        self._pauses = Backoff(first_s=first_wait_s, longest_s=longest_wait_s)
        self._hold_s = hold_s
        self._give_back = give_back
        self._take_again = take_again
        self._closed = asyncio.Event()
        self._closed.set()
        self._opened = asyncio.Event()
        self._closed_at = 0.0
        self._released = False
        self.reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether attempts are held back."""
        return self.reason is not None

    def open(self, reason: str) -> None:
        """Hold attempts back from now on.

        :param reason: what is in the way, without secrets.
        """
        if self.reason is None:
            log.warning("breaker.opened", consumer=self._consumer, reason=reason)
            if monotonic() - self._closed_at > STABLE_S:
                self._pauses.reset()
        self.reason = reason
        if not self._released:
            self._closed.clear()
        self._opened.set()

    async def closed(self) -> bool:
        """Wait until attempts may start. False: none will, since the process stops while the breaker is open."""
        await self._closed.wait()
        return self.reason is None

    def release(self) -> None:
        """Let go of everybody who waits: the process stops."""
        self._released = True
        self._closed.set()

    async def run(self) -> None:
        """Probe while open, until cancelled."""
        while True:
            await self._opened.wait()
            self._opened.clear()
            await self._until_closed()

    async def _until_closed(self) -> None:
        opened_at = monotonic()
        given_back = False
        while True:
            await asyncio.sleep(self._pauses.next_s())
            blocked = await self._probe()
            if blocked is None:
                break
            self.reason = blocked
            if not given_back and monotonic() - opened_at > self._hold_s:
                given_back = True
                log.warning("breaker.gave_back", consumer=self._consumer, held_s=round(monotonic() - opened_at, 1))
                await self._give_back()
        log.info("breaker.closed", consumer=self._consumer, open_s=round(monotonic() - opened_at, 3))
        self.reason = None
        self._opened.clear()
        self._closed_at = monotonic()
        self._closed.set()
        if given_back:
            self._take_again()
