"""The receipt's time partitions: few, wide, and made ahead.

Every claim opens every partition, so there are few of them: each spans a third of the retention. A new one is made as
a table of its own and then attached, which waits for nobody; `CREATE TABLE … PARTITION OF` would stall every claim.
There is no default partition: a missing one pauses the fleet by name instead of filling a table that could never be
attached around.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import structlog

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.queries import query
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_PARTITIONS = query("receipt_partitions")
_LOCK = query("lock_partitions")
_CLOCK = query("clock")
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)

PARTITIONS_PER_RETENTION = 3
AHEAD = 2
_LOOK_EVERY_S = 600.0

_Span: TypeAlias = tuple[datetime, datetime]


def width(retention_s: float) -> timedelta:
    """Return how much time one partition spans: a third of the retention, in whole hours, one hour at least."""
    return timedelta(hours=max(1, round(retention_s / PARTITIONS_PER_RETENTION / 3600)))


async def ensure(connection: asyncpg.Connection[Any], *, retention_s: float) -> list[str]:
    """Make the partitions that are missing up to `AHEAD` widths from now, and return their names.

    Each one is decided and made under one lock. So processes that do this at the same time, with another retention
    perhaps, leave no gap and no overlap.
    """
    made: list[str] = []
    while True:
        # Read committed, so that what is seen is what whoever had the lock before has made.
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(_LOCK)
            span = next_span(await _spans(connection), await connection.fetchval(_CLOCK), width(retention_s))
            if span is None:
                return made
            made.append(await _attach(connection, *span))


def next_span(spans: list[_Span], now: datetime, step: timedelta) -> _Span | None:
    """Return the next partition that is missing, or None if enough time ahead is covered.

    :param spans: what is attached, in any order.
    """
    lower = covered_until(spans, now)
    if lower >= now + AHEAD * step:
        return None
    if not spans:
        lower = _EPOCH + ((now - _EPOCH) // step) * step
    elif lower == now:
        # Nothing covers this moment. What ended a short while ago goes on; before that no receipt can fall any more.
        lower = max((upper for _, upper in spans if now - step < upper <= now), default=now)
    return lower, min((after for after, _ in spans if lower < after < lower + step), default=lower + step)


def covered_until(spans: list[_Span], now: datetime) -> datetime:
    """Return up to when every moment from now on has a partition; `now` if this one has none."""
    end = now
    for lower, upper in sorted(spans):
        if lower <= end < upper:
            end = upper
    return end


async def runway_s(connection: asyncpg.Connection[Any]) -> float:
    """Return for how many seconds from now receipts have a partition; zero: nothing can be processed."""
    now: datetime = await connection.fetchval(_CLOCK)
    return (covered_until(await _spans(connection), now) - now).total_seconds()


async def keep(pool: Pool, *, retention_s: float) -> None:
    """Make partitions ahead until cancelled. A failure is alarmed and tried again long before the runway ends."""
    while True:
        try:
            async with pool.acquire() as connection:
                made = await ensure(connection, retention_s=retention_s)
            if made:
                log.info("receipt.partitions_made", names=made)
        except (*DRIVER_ERRORS, PoolError) as error:
            log.warning("receipt.partitions_not_made", fault=describe(error))
        await asyncio.sleep(_LOOK_EVERY_S)


async def _spans(connection: asyncpg.Connection[Any]) -> list[_Span]:
    return [(row["lower"], row["upper"]) for row in await connection.fetch(_PARTITIONS)]


async def _attach(connection: asyncpg.Connection[Any], lower: datetime, upper: datetime) -> str:
    # Names and bounds are made of digits here, never of anybody's input.
    name = f"receipt_{lower:%Y%m%d_%H%M%S}"
    bounds = f"FROM ('{lower.isoformat()}') TO ('{upper.isoformat()}')"
    await connection.execute(f"CREATE TABLE IF NOT EXISTS inbox.{name} (LIKE inbox.receipt INCLUDING DEFAULTS)")
    await connection.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {name}_key ON inbox.{name} (key)")
    await connection.execute(f"ALTER TABLE inbox.receipt ATTACH PARTITION inbox.{name} FOR VALUES {bounds}")
    return name
