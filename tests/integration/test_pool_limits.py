"""A server that has fewer connections to give than a pool may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio

from pools import Checkout, Pool, Pools, PoolSpec, PoolTimeout, connection_budget, server_limits
from servers import PostgresServer
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.pools import at_rest, open_pool, session

LANES = 6


class Limited:
    """A role of a test's own that may hold so many connections."""

    def __init__(self, superuser: asyncpg.Connection, database: Database, server: PostgresServer) -> None:
        self._superuser = superuser
        self._database = database
        self.name = f"limited_{database.name}"
        self.url = urlsplit(database.url)._replace(netloc=f"{self.name}:limited@127.0.0.1:{server.port}").geturl()

    async def make(self) -> None:
        """Make the role, without a limit."""
        await self._superuser.execute(f"create role {self.name} login password 'limited'")

    async def move(self, limit: int) -> None:
        """Let it hold so many connections; -1: as many as it likes."""
        await self._superuser.execute(f"alter role {self.name} connection limit {limit}")

    async def drop(self) -> None:
        """Remove the role."""
        await self._superuser.execute(f"drop role {self.name}")


@pytest_asyncio.fixture
async def role(own_database: Database, own_postgres: PostgresServer) -> AsyncIterator[Limited]:
    """A role of this test alone. Roles belong to a whole server, and only a superuser makes them."""
    superuser = await asyncpg.connect(own_postgres.url("postgres", superuser=True))
    role = Limited(superuser, own_database, own_postgres)
    await role.make()
    yield role
    await role.drop()
    await superuser.close()


async def test_a_pool_works_with_fewer_connections_and_recovers_when_there_are_more(role: Limited) -> None:
    await role.move(2)
    async with open_pool(role.url, lanes=LANES, acquire_timeout_s=20.0) as pool:
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
            await role.move(-1)
            # One more within a second, and all of them as soon as that one is there.
            await eventually(lambda: pool.statistics().open == LANES, within_s=2.5)
            over.set()
        assert pool.statistics().limit == LANES
        assert at_rest(pool)


async def test_a_crowded_server_is_not_asked_again_and_again(role: Limited) -> None:
    await role.move(1)
    async with open_pool(role.url, lanes=LANES, acquire_timeout_s=20.0) as pool:

        async def use() -> None:
            async with pool.acquire() as connection:
                await connection.execute("select")

        began = monotonic()
        await asyncio.gather(*(use() for _ in range(200)))
        # Each that started together was refused once; then one more a second.
        assert pool.statistics().refusals <= LANES + 2 * (monotonic() - began)


async def test_a_wait_that_the_server_made_too_long_says_so(role: Limited) -> None:
    await role.move(1)
    async with open_pool(role.url, lanes=LANES, acquire_timeout_s=0.6) as pool:
        held = await asyncio.create_task(pool.checkout())
        with pytest.raises(PoolTimeout, match="the server refuses more than 1 of 6 connections") as caught:
            await asyncio.create_task(pool.checkout())
        assert (caught.value.size, caught.value.limit) == (LANES, 1)
        assert isinstance(caught.value.__cause__, asyncpg.TooManyConnectionsError)
        await held.release()
        assert at_rest(pool)


async def test_a_server_that_gives_no_connection_at_all_is_told_at_once_by_the_drivers_error(role: Limited) -> None:
    await role.move(0)
    async with open_pool(role.url, lanes=LANES, acquire_timeout_s=20.0) as pool:
        began = monotonic()
        answers = await asyncio.gather(*(pool.checkout() for _ in range(LANES)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [asyncpg.TooManyConnectionsError] * LANES
        assert monotonic() - began < 5
        assert at_rest(pool)
        await role.move(-1)
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1


@asynccontextmanager
async def pools_of(role: Limited) -> AsyncIterator[Pools]:
    """Two pools of one process: `lanes` of four and `own` of one."""
    specs = [
        PoolSpec(name=name, application_name=name, lanes=lanes, headroom=0, session=session())
        for name, lanes in (("lanes", 4), ("own", 1))
    ]
    pools = Pools(role.url, specs)
    await pools.open()
    yield pools
    await pools.close(2.0)


async def _take(pool: Pool) -> Checkout:
    return await asyncio.create_task(pool.checkout())


async def test_a_pool_that_has_no_connection_gets_one_of_a_pool_that_has_several(role: Limited) -> None:
    await role.move(4)
    async with pools_of(role) as pools:
        lanes, own = pools["lanes"], pools["own"]
        for checkout in [await _take(lanes) for _ in range(4)]:
            await checkout.release()
        assert lanes.statistics().idle == 4
        async with asyncio.timeout(1), own.acquire() as connection:
            assert await connection.fetchval("select 1") == 1
        assert (lanes.statistics().open, own.statistics().open) == (3, 1)

        # The larger one works on with what is left, and the smaller one keeps what it has.
        three = [await _take(lanes) for _ in range(3)]
        async with own.acquire() as connection:
            assert await connection.fetchval("select 1") == 1
        await role.move(-1)
        three.append(await _take(lanes))
        for checkout in three:
            await checkout.release()


async def test_a_busy_connection_is_given_up_when_it_comes_back(role: Limited) -> None:
    await role.move(4)
    async with pools_of(role) as pools:
        four = [await _take(pools["lanes"]) for _ in range(4)]
        waiting = asyncio.create_task(_take(pools["own"]))
        await eventually(lambda: pools["lanes"].statistics().limit < 4, what="one being asked for")
        assert not waiting.done()
        for checkout in four:
            assert await checkout.connection.fetchval("select 1") == 1
        await four.pop().release()
        await (await asyncio.wait_for(waiting, 4)).release()
        assert len(four) == pools["lanes"].statistics().open
        for checkout in four:
            await checkout.release()


async def test_nobody_gives_up_his_last_connection(role: Limited) -> None:
    await role.move(1)
    async with pools_of(role) as pools:
        last = await _take(pools["lanes"])
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await _take(pools["own"])
        assert await last.connection.fetchval("select 1") == 1
        await last.release()
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await _take(pools["own"])
        assert pools["lanes"].statistics().open == 1


async def test_the_limits_of_a_server_are_read_with_those_of_role_and_database(
    role: Limited, own_database: Database
) -> None:
    async def setting(name: str) -> int:
        return int(await own_database.fetchval("select current_setting($1)", name))

    await role.move(7)
    connection = await asyncpg.connect(role.url)
    limits = await server_limits(connection)
    unlimited = await server_limits(await own_database.connect())
    await own_database.execute(f"alter database {own_database.name} connection limit 5")
    tighter = await server_limits(connection)
    await connection.close()

    reserved = await setting("superuser_reserved_connections")
    if await setting("server_version_num") >= 160000:
        reserved += await setting("reserved_connections")
    assert (limits.max_connections, limits.reserved) == (await setting("max_connections"), reserved)
    assert (unlimited.role_limit, unlimited.database_limit) == (None, None)
    assert (limits.role_limit, limits.database_limit) == (7, None)
    assert (tighter.role_limit, tighter.database_limit) == (7, 5)
    spec = PoolSpec(name="lanes", application_name="lanes", lanes=2, session=session())
    budget = connection_budget([spec], replicas=2, surge=1, share=0.8, limits=tighter)
    assert (budget.wanted, budget.allowed, budget.limited_by) == (9, 5, "the connection limit of the database")
