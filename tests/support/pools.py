"""Open pools for tests, with short deadlines, and the questions that tests ask about them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pools import Pool, PoolSpec, SessionSettings


def session(**differences: Any) -> SessionSettings:
    """Return session settings that let a statement have ten seconds; every one may be given."""
    fields: dict[str, Any] = {"statement_timeout_s": 10.0, "idle_in_transaction_timeout_s": 10.0} | differences
    return SessionSettings(**fields)


@asynccontextmanager
async def open_pool(url: str, **spec: Any) -> AsyncIterator[Pool]:
    """Open a pool named `lanes` of two lanes and no headroom; every field of its spec may be given."""
    fields: dict[str, Any] = {
        "name": "lanes",
        "application_name": "shop-lanes",
        "lanes": 2,
        "headroom": 0,
        "session": session(),
    } | spec
    pool = Pool(url, PoolSpec(**fields))
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close(2.0)


def at_rest(pool: Pool) -> bool:
    """Whether nobody holds a connection of a pool or waits for one, and all that are open are idle."""
    now = pool.statistics()
    return now.in_use == 0 and now.waiting == 0 and now.idle == now.open
