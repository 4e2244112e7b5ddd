"""How late the event loop is: what a handler that blocks it costs everybody else, the broker's heartbeats included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

PERIOD_S = 0.1
"""A block that begins and ends between two measurements is not seen, so it is short."""

BLOCKED_S = 1.0
"""From this lag on a line is logged: a blocked loop answers neither the broker nor the probes."""

log = structlog.get_logger()


async def loop_lag(record: Callable[[float], None], *, period_s: float = PERIOD_S) -> None:
    """Measure until cancelled how late a timer of this loop fires.

    :param record: takes each measurement, seconds.
    :param period_s: time between two measurements.
    """
    while True:
        # Not the loop's own clock: uvloop reads it once per turn, in milliseconds.
        due = time.monotonic() + period_s
        await asyncio.sleep(period_s)
        lag_s = max(0.0, time.monotonic() - due)
        record(lag_s)
        if lag_s >= BLOCKED_S:
            log.warning("loop.blocked", lag_s=round(lag_s, 3))
