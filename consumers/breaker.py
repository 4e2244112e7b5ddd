"""The breaker of a consumer: closed while its messages can be served, open while something is in every message's way.

An outage is nobody's message's fault. While the breaker is open no attempt starts and deliveries are held, neither
spun nor counted; a probe with growing, jittered pauses finds out when it is over. If it opens again soon after it was
closed, the pauses go on growing from where they were.

The probe knows database and broker. What a handler reports about a service that only it knows (`pause` among a
consumer's faults) no probe can see, so one of those that wait is let through after each pause, and the breaker closes
when that attempt has met nothing of the kind.

What has been held for too long is given back to the broker, also if the breaker was closed for a moment meanwhile.
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
    :param hold_s: deliveries are held so long, then `give_back` is called, and `take_again` when attempts may start.
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
        self._opened = asyncio.Event()
        self._waiting: dict[asyncio.Future[bool], asyncio.Task[object] | None] = {}
        self._trial: asyncio.Task[object] | None = None
        self._trial_passed = asyncio.Event()
        self._by_handler = False
        self._closed_at = float("-inf")
        self._held_since = 0.0
        self._given_back = False
        self._released = False
        self.reason: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether attempts are held back."""
        return self.reason is not None

    def was_open(self, within_s: float) -> bool:
        """Whether attempts are held back, or were at some time in the last seconds.

        A fault that the probe does not see lets it close, and opens it again by the next attempt that meets it.
        """
        return self.is_open or monotonic() - self._closed_at < within_s

    def open(self, reason: str, *, by_handler: bool = False) -> None:
        """Hold attempts back from now on.

        :param reason: what is in the way, without secrets.
        :param by_handler: a handler met it, and the probe may not see it.
        """
        if self.reason is None:
            log.warning("breaker.opened", consumer=self._consumer, reason=reason)
            now = monotonic()
            if now - self._closed_at > STABLE_S:
                self._pauses.reset()
                self._held_since = now
            self._by_handler = False
        self.reason = reason
        self._by_handler = self._by_handler or by_handler
        self._opened.set()

    async def closed(self) -> bool:
        """Wait until an attempt may start. False: none will, since the process stops while the breaker is open."""
        if self.reason is None or self._released:
            return self.reason is None
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = asyncio.current_task()
        try:
            return await waiter
        finally:
            self._waiting.pop(waiter, None)

    def served(self) -> None:
        """An attempt of the calling task has met nothing that is in every message's way."""
        if self._trial is not None and self._trial is asyncio.current_task():
            self._trial = None
            self._trial_passed.set()

    def release(self) -> None:
        """Let go of everybody who waits: the process stops."""
        self._released = True
        self._let_go(self.reason is None)

    async def run(self) -> None:
        """Probe while open, until cancelled."""
        while True:
            await self._opened.wait()
            self._opened.clear()
            await self._until_closed()

    async def _until_closed(self) -> None:
        opened_at = monotonic()
        self._trial_passed.clear()
        while True:
            if not self._given_back and monotonic() - self._held_since > self._hold_s:
                await self._give_all_back()
            if await self._trial_passes_within(self._pauses.next_s()):
                break
            blocked = await self._probe()
            if blocked is not None:
                self.reason = blocked
            elif self._by_handler and (self._waiting or self._given_back):
                self._consume_again()
                self._try_one()
            else:
                break
        log.info("breaker.closed", consumer=self._consumer, open_s=round(monotonic() - opened_at, 3))
        self.reason = None
        self._trial = None
        self._opened.clear()
        self._closed_at = monotonic()
        self._let_go(True)
        self._consume_again()

    async def _trial_passes_within(self, pause_s: float) -> bool:
        try:
            async with asyncio.timeout(pause_s):
                await self._trial_passed.wait()
        except TimeoutError:
            return False
        return True

    async def _give_all_back(self) -> None:
        log.warning("breaker.gave_back", consumer=self._consumer, held_s=round(monotonic() - self._held_since, 1))
        self._given_back = True
        await self._give_back()
        # The broker has them all: whoever waits finds that out, and starts nothing.
        self._let_go(True)

    def _consume_again(self) -> None:
        if self._given_back:
            self._given_back = False
            self._held_since = monotonic()
            self._take_again()

    def _try_one(self) -> None:
        for waiter, task in self._waiting.items():
            if not waiter.done():
                self._trial = task
                waiter.set_result(True)
                return

    def _let_go(self, may_start: bool) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(may_start)
