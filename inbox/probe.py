"""Whether the database can serve attempts now: what a consumer's breaker asks while it is open."""

from __future__ import annotations

from typing import Any

import asyncpg

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.partitions import runway_s
from inbox.queries import query
from pools import Pool, PoolError

_PROBE = query("probe")
_STAMP = query("stamp_nobody")
_TIMEOUT_S = 5.0


async def blocked(pool: Pool) -> str | None:
    """Return what keeps attempts on this pool from being served, or None.

    Idle connections to a server that takes no writes are closed, so that the next ones may reach one that does.
    """
    try:
        async with pool.acquire() as connection:
            if await is_read_only(connection):
                await pool.expire()
                return "the database server is read-only"
            if await runway_s(connection) <= 0:
                return "no partition of receipts or events covers now: run `inbox-fleet migrate`"
            await _rehearse(connection)
    except (*DRIVER_ERRORS, PoolError) as error:
        return describe(error)
    return None


async def is_read_only(connection: asyncpg.Connection[Any]) -> bool:
    """Return whether this session meets a server that takes no writes from it."""
    return bool(await connection.fetchval(_PROBE, timeout=_TIMEOUT_S))


async def _rehearse(connection: asyncpg.Connection[Any]) -> None:
    """Stamp nobody, so that whatever a stamp would meet is met here: a privilege or a function that is missing."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(_STAMP, timeout=_TIMEOUT_S)
    finally:
        await transaction.rollback()
