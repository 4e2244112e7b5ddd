"""The receipt's time partitions: few, wide, and made ahead.

Every claim opens every partition, so there are few of them: each spans a third of the retention. A new one is made as
a table of its own and then attached, which waits for nobody; `CREATE TABLE … PARTITION OF` would stall every claim.
There is no default partition: a missing one pauses the fleet by name instead of filling a table that could never be
attached around.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import structlog

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.queries import query
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_PARTITIONS = query("receipt_partitions")
_CLOCK = query("clock")
_UPPER = re.compile(r"TO \('([^']+)'\)")
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)

PARTITIONS_PER_RETENTION = 3
AHEAD = 2
_LOOK_EVERY_S = 600.0


def width(retention_s: float) -> timedelta:
    """Return how much time one partition spans: a third of the retention, in whole hours, one hour at least."""
    return timedelta(hours=max(1, round(retention_s / PARTITIONS_PER_RETENTION / 3600)))


async def ensure(connection: asyncpg.Connection[Any], *, retention_s: float) -> list[str]:
    """Make the partitions that are missing up to `AHEAD` widths from now, and return their names.

    Bounds continue where the newest partition ends, so that a changed retention leaves no gap and no overlap.
    """
    step = width(retention_s)
    now = await connection.fetchval(_CLOCK)
    made: list[str] = []
    upper = await _upper_bound(connection)
    lower = upper if upper is not None else _EPOCH + ((now - _EPOCH) // step) * step
    if lower < now - step:
        lower = now  # nothing was made for so long that the gap lies in the past, where no receipt can fall
    while lower < now + AHEAD * step:
        name = f"receipt_{lower:%Y%m%d_%H%M%S}"
        await _attach(connection, name, lower, lower + step)
        made.append(name)
        lower += step
    return made


async def runway_s(connection: asyncpg.Connection[Any]) -> float:
    """Return for how many seconds from now receipts have a partition; zero or less: nothing can be processed."""
    upper = await _upper_bound(connection)
    return 0.0 if upper is None else float((upper - await connection.fetchval(_CLOCK)).total_seconds())


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


async def _upper_bound(connection: asyncpg.Connection[Any]) -> datetime | None:
    bounds = [_UPPER.search(row["bound"]) for row in await connection.fetch(_PARTITIONS)]
    uppers = [datetime.fromisoformat(bound[1]) for bound in bounds if bound is not None]
    return max(uppers, default=None)


async def _attach(connection: asyncpg.Connection[Any], name: str, lower: datetime, upper: datetime) -> None:
    # Names and bounds are made of digits here, never of anybody's input. Two processes may do this at once: the lock
    # lets one of them make the table, the other finds it attached.
    bounds = f"FROM ('{lower.isoformat()}') TO ('{upper.isoformat()}')"
    async with connection.transaction():
        await connection.execute(query("lock_partitions"))
        attached = {row["name"] for row in await connection.fetch(_PARTITIONS)}
        if name in attached:
            return
        await connection.execute(f"CREATE TABLE IF NOT EXISTS inbox.{name} (LIKE inbox.receipt INCLUDING DEFAULTS)")
        await connection.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {name}_key ON inbox.{name} (key)")
        await connection.execute(f"ALTER TABLE inbox.receipt ATTACH PARTITION inbox.{name} FOR VALUES {bounds}")
