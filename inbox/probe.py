"""Whether the database can serve attempts now: what a consumer's breaker asks while it is open."""

from __future__ import annotations

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.partitions import runway_s
from inbox.queries import query
from pools import Pool, PoolError

_PROBE = query("probe")
_TIMEOUT_S = 5.0


async def blocked(pool: Pool) -> str | None:
    """Return what keeps attempts on this pool from being served, or None.

    Idle connections to a server that takes no writes are closed, so that the next ones may reach one that does.
    """
    try:
        async with pool.acquire() as connection:
            if await connection.fetchval(_PROBE, timeout=_TIMEOUT_S):
                await pool.expire()
                return "the database server is read-only"
            if await runway_s(connection) <= 0:
                return "no receipt partition covers now: run `inbox-fleet migrate`"
    except (*DRIVER_ERRORS, PoolError) as error:
        return describe(error)
    return None
