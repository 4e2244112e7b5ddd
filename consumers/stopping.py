"""How a process is told to stop, and how what waits for something is ended by that."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import structlog

from consumers.background import background

log = structlog.get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StoppedEarly(Exception):
    """The process was told to stop before it had started."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What the platform asked for: to stop, and then to hurry."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def received(self, name: str) -> None:
        """Take one signal: the first one stops, the second one hurries."""
        log.info("process.signal", signal=name, hurry=self.stop.is_set())
        (self.hurry if self.stop.is_set() else self.stop).set()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Take the platform's signals inside the block, in the running loop."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.received, number.name)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    @asynccontextmanager
    async def unless_stopped(self) -> AsyncIterator[None]:
        """Let the stop end at once what is begun inside.

        :raises StoppedEarly: it did.
        """
        try:
            async with asyncio.timeout(None) as bound, background() as start:
                start("stop", self._expire(bound))
                yield
        except* TimeoutError as late:
            if not self.stop.is_set():
                raise
            raise StoppedEarly from late

    async def _expire(self, bound: asyncio.Timeout) -> None:
        await self.stop.wait()
        bound.reschedule(asyncio.get_running_loop().time())
