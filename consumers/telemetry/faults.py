"""The one place where errors of telemetry end: counted, logged once a minute at most, and never passed on.

Telemetry fails open. Every public call of this package catches `Exception` and comes here; no outcome depends on it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import structlog

QUIET_S = 60.0

log = structlog.get_logger()


class Faults:
    """Counts errors by the place they happened in.

    :param clock: seconds that only grow.
    :ivar counts: errors so far, by place.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._told_at: float | None = None
        self._untold = 0

    def caught(self, place: str, error: Exception) -> None:
        """Take an error. `place` is one of a few fixed words."""
        self.counts[place] += 1
        now = self._clock()
        if self._told_at is not None and now - self._told_at < QUIET_S:
            self._untold += 1
            return
        untold, self._told_at, self._untold = self._untold, now, 0
        log.warning("telemetry.failed", place=place, error=error, more_since_last=untold)
