"""Time partitions of receipts and of events: few, wide, and made ahead.

Every claim opens every partition of the receipts, so there are few of them: each spans a third of the retention. A new
one is made as a table of its own and then attached, which waits for nobody; `CREATE TABLE … PARTITION OF` would stall
every claim. There is no default partition: a missing one pauses the fleet by name instead of filling a table that could
never be attached around.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import structlog

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.queries import query
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_PARTITIONS = query("partitions")
_LOCK = query("lock_partitions")
_CLOCK = query("clock")
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)

PARTITIONS_PER_RETENTION = 3
AHEAD = 2
_LOOK_EVERY_S = 600.0

_Span: TypeAlias = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A table of the schema that is partitioned by time.

    :param like: what a partition takes over from it.
    :param unique: columns by which rows of one partition are unique, where the table itself cannot say so.
    """

    table: str
    like: str
    unique: str | None = None


RECEIPTS = Partitioned("receipt", like="INCLUDING DEFAULTS", unique="key")
EVENTS = Partitioned("event", like="INCLUDING ALL")


def width(retention_s: float) -> timedelta:
    """Return how much time one partition spans: a third of the retention, in whole hours, one hour at least."""
    return timedelta(hours=max(1, round(retention_s / PARTITIONS_PER_RETENTION / 3600)))


async def ensure(connection: asyncpg.Connection[Any], of: Partitioned = RECEIPTS, *, retention_s: float) -> list[str]:
    """Make a table's partitions that are missing up to `AHEAD` widths from now, and return their names.

    Each one is decided and made under one lock. So processes that do this at the same time, with another retention
    perhaps, leave no gap and no overlap.
    """
    made: list[str] = []
    while True:
        # Read committed, so that what is seen is what whoever had the lock before has made.
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(_LOCK)
            span = next_span(await _spans(connection, of), await connection.fetchval(_CLOCK), width(retention_s))
            if span is None:
                return made
            made.append(await _attach(connection, of, *span))


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


async def runway_s(connection: asyncpg.Connection[Any], *of: Partitioned) -> float:
    """Return for how many seconds from now each of these tables has partitions; zero: nothing can be processed.

    :param of: both, if none is named.
    """
    now: datetime = await connection.fetchval(_CLOCK)
    ends = [covered_until(await _spans(connection, table), now) for table in of or (RECEIPTS, EVENTS)]
    return (min(ends) - now).total_seconds()


async def keep(pool: Pool, *, receipts_s: float, events_s: float) -> None:
    """Make partitions ahead until cancelled. A failure is alarmed and tried again long before the runway ends.

    :param receipts_s: how long receipts are kept, in seconds. :param events_s: how long sent events are.
    """
    while True:
        try:
            async with pool.acquire() as connection:
                made = await ensure(connection, RECEIPTS, retention_s=receipts_s)
                made += await ensure(connection, EVENTS, retention_s=events_s)
            if made:
                log.info("partitions.made", names=made)
        except (*DRIVER_ERRORS, PoolError) as error:
            log.warning("partitions.not_made", fault=describe(error))
        await asyncio.sleep(_LOOK_EVERY_S)


async def _spans(connection: asyncpg.Connection[Any], of: Partitioned) -> list[_Span]:
    return [(row["lower"], row["upper"]) for row in await connection.fetch(_PARTITIONS, of.table)]


async def _attach(connection: asyncpg.Connection[Any], of: Partitioned, lower: datetime, upper: datetime) -> str:
    # Names and bounds are made of digits here, never of anybody's input.
    name = f"{of.table}_{lower:%Y%m%d_%H%M%S}"
    bounds = f"FROM ('{lower.isoformat()}') TO ('{upper.isoformat()}')"
    await connection.execute(f"CREATE TABLE IF NOT EXISTS inbox.{name} (LIKE inbox.{of.table} {of.like})")
    if of.unique is not None:
        await connection.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {name}_{of.unique} ON inbox.{name} ({of.unique})")
    await connection.execute(f"ALTER TABLE inbox.{of.table} ATTACH PARTITION inbox.{name} FOR VALUES {bounds}")
    return name
