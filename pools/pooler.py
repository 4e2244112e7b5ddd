"""Whether something between us and the server mixes sessions up.

A pooler in session mode is like no pooler: a client keeps one server session for as long as it is connected. In
transaction mode each transaction may meet another session, and what a consumer relies on falls apart without an error:
a lock of the session is held by one and given back to another. So it is looked for before the first delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import asyncpg

_ROUNDS = 8
_BACKEND = "select pg_backend_pid()"
_DEADLINE_S = 10.0


async def detect_transaction_pooler(dsn: str, *, deadline_s: float = _DEADLINE_S) -> bool:
    """Ask through two connections whether they meet one and the same server session.

    :param deadline_s: for all of it. A pooler in session mode may let the second connection wait for as long as the
        first one is there; that is an answer too.
    :raises asyncpg.PostgresError, OSError: the database cannot be reached, or does not let us in (TimeoutError, which
        is an OSError: not within the deadline).
    """
    async with asyncio.timeout(deadline_s):
        one = await _connect(dsn)
    try:
        async with asyncio.timeout(deadline_s):
            if await one.fetchval(_BACKEND) == one.get_server_pid():
                return False  # the server itself gave us the number of its process
        try:
            async with asyncio.timeout(deadline_s):
                return sessions_are_shared(await _sightings(dsn, one))
        except TimeoutError:
            if one.is_closed():
                raise
            return False  # the second one is kept waiting for the session that the first one holds
    finally:
        one.terminate()


def sessions_are_shared(sightings: Iterable[tuple[int, int]]) -> bool:
    """Judge whether two clients shared server sessions.

    :param sightings: again and again, the server process that the first one met, and then the second one.
    """
    first, second = (set(pids) for pids in zip(*sightings, strict=True))
    return len(first) > 1 or len(second) > 1 or bool(first & second)


async def _sightings(dsn: str, one: asyncpg.Connection[Any]) -> list[tuple[int, int]]:
    other = await _connect(dsn)
    try:
        return [(await one.fetchval(_BACKEND), await other.fetchval(_BACKEND)) for _ in range(_ROUNDS)]
    finally:
        other.terminate()


async def _connect(dsn: str) -> asyncpg.Connection[Any]:
    # No named statements: one that was made in a session is not there in the next.
    connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn, statement_cache_size=0)
    return connection
