"""A server that has fewer connections to give than a pool may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from urllib.parse import urlsplit

import asyncpg
import pytest

from pools import PoolSpec, PoolTimeout, connection_budget, server_limits
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.pools import at_rest, open_pool, session

LANES = 6


@asynccontextmanager
async def limited_role(database: Database, limit: int) -> AsyncIterator[str]:
    """Make a role that may hold so many connections; give the URL of the database for it."""
    role = f"limited_{database.name}"
    await database.execute(f"create role {role} login password 'limited' connection limit {limit}")
    parts = urlsplit(database.url)
    try:
        yield parts._replace(netloc=f"{role}:limited@{parts.hostname}:{parts.port}").geturl()
    finally:
        await database.execute(f"drop role {role}")


async def move_limit(database: Database, limit: int) -> None:
    await database.execute(f"alter role limited_{database.name} connection limit {limit}")


async def test_a_pool_works_with_fewer_connections_and_recovers_when_there_are_more(empty_database: Database) -> None:
    async with (
        limited_role(empty_database, 2) as url,
        open_pool(url, lanes=LANES, acquire_timeout_s=20.0) as pool,
    ):
        served: list[int] = []
        over = asyncio.Event()

        async def lane() -> None:
            while not over.is_set():
                async with pool.acquire() as connection:
                    served.append(await connection.fetchval("select 1 from pg_sleep(0.01)"))

        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(lane())
            await eventually(lambda: len(served) > 50)
            now = pool.statistics()
            assert (now.open, now.timeouts) == (2, 0)
            assert now.refusals > 0
            await move_limit(empty_database, -1)
            # One more within a second, and all of them as soon as that one is there.
            await eventually(lambda: pool.statistics().open == LANES, within_s=2.5)
            over.set()
        assert pool.statistics().limit == LANES
        assert at_rest(pool)


async def test_a_crowded_server_is_not_asked_again_and_again(empty_database: Database) -> None:
    async with limited_role(empty_database, 1) as url, open_pool(url, lanes=LANES, acquire_timeout_s=20.0) as pool:

        async def use() -> None:
            async with pool.acquire() as connection:
                await connection.execute("select")

        began = monotonic()
        await asyncio.gather(*(use() for _ in range(200)))
        # Each that started together was refused once; then one more a second.
        assert pool.statistics().refusals <= LANES + 2 * (monotonic() - began)


async def test_a_wait_that_the_server_made_too_long_says_so(empty_database: Database) -> None:
    async with limited_role(empty_database, 1) as url, open_pool(url, lanes=LANES, acquire_timeout_s=0.3) as pool:
        held = await asyncio.create_task(pool.checkout())
        with pytest.raises((PoolTimeout, asyncpg.TooManyConnectionsError)) as caught:
            await asyncio.create_task(pool.checkout())
        error = caught.value
        assert isinstance(error, PoolTimeout)
        assert (error.size, error.limit) == (LANES, 1)
        assert "the server refuses more than 1 of 6 connections" in str(error)
        assert isinstance(error.__cause__, asyncpg.TooManyConnectionsError)
        await held.release()
        assert at_rest(pool)


async def test_a_server_that_gives_no_connection_at_all_is_told_at_once_by_the_drivers_error(
    empty_database: Database,
) -> None:
    async with limited_role(empty_database, 0) as url, open_pool(url, lanes=LANES, acquire_timeout_s=20.0) as pool:
        began = monotonic()
        answers = await asyncio.gather(*(pool.checkout() for _ in range(LANES)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [asyncpg.TooManyConnectionsError] * LANES
        assert monotonic() - began < 5
        assert at_rest(pool)
        await move_limit(empty_database, -1)
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1


async def test_the_limits_of_a_server_are_read_with_those_of_role_and_database(empty_database: Database) -> None:
    version_num = await empty_database.fetchval("select current_setting('server_version_num')::integer")
    async with limited_role(empty_database, 7) as url:
        connection = await asyncpg.connect(url)
        limits = await server_limits(connection)
        own = await server_limits(await empty_database.connect())
        await empty_database.execute(f"alter database {empty_database.name} connection limit 5")
        tighter = await server_limits(connection)
        connection.terminate()
        await eventually(lambda: _gone(empty_database))

    async def setting(name: str) -> int:
        return int(await empty_database.fetchval("select current_setting($1)", name))

    reserved = await setting("superuser_reserved_connections")
    if version_num >= 160000:
        reserved += await setting("reserved_connections")
    assert (limits.max_connections, limits.reserved) == (await setting("max_connections"), reserved)
    assert (own.role_limit, own.database_limit) == (None, None)
    assert (limits.role_limit, limits.database_limit) == (7, None)
    assert (tighter.role_limit, tighter.database_limit) == (7, 5)
    spec = PoolSpec(name="lanes", application_name="lanes", lanes=2, session=session())
    budget = connection_budget([spec], replicas=2, surge=1, share=0.8, limits=tighter)
    assert (budget.wanted, budget.allowed, budget.limited_by) == (9, 5, "the connection limit of the database")


async def _gone(database: Database) -> bool:
    return not await database.fetch("select from pg_stat_activity where usename = $1", f"limited_{database.name}")
