"""Pools on a real server: wiring, deadlines, nesting, giving back, closing."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic

import asyncpg
import pytest

from pools import (
    NestedAcquire,
    PoolNotOpen,
    Pools,
    PoolSpec,
    PoolTimeout,
    detect_transaction_pooler,
    work,
)
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.pools import at_rest, open_pool, session
from tests.support.relay import RelayBefore

TERMINATE = b"X\x00\x00\x00\x04"
"""The message by which a client says farewell."""


async def test_a_pools_sessions_bear_its_name_and_its_settings(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=3, headroom=1) as pool:
        assert await empty_database.sessions("shop-lanes") == []  # none before one is needed
        checkouts = [await asyncio.create_task(pool.checkout()) for _ in range(pool.spec.size)]
        seen = {row["pid"] for row in await empty_database.sessions("shop-lanes")}
        assert seen == {checkout.pid for checkout in checkouts}
        version_num = await empty_database.fetchval("select current_setting('server_version_num')::integer")
        for name, value in pool.spec.session.server_settings(version_num).items():
            told = await checkouts[0].connection.fetchval("select reset_val from pg_settings where name = $1", name)
            assert told == value
        for checkout in checkouts:
            await checkout.release()


async def test_a_transaction_timeout_is_set_where_the_server_knows_it(empty_database: Database) -> None:
    settings = session(transaction_timeout_s=61.0)
    async with open_pool(empty_database.url, session=settings) as pool, pool.acquire() as connection:
        known = await connection.fetchval("select setting from pg_settings where name = 'transaction_timeout'")
        version_num = await connection.fetchval("select current_setting('server_version_num')::integer")
        assert known == ("61000" if version_num >= 170000 else None)


async def test_the_clients_end_of_a_line_notices_a_dead_peer_too(empty_database: Database) -> None:
    async with open_pool(empty_database.url, session=session(unacknowledged_s=7.0)) as pool:
        checkout = await pool.checkout()
        line = checkout.connection._transport.get_extra_info("socket")
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 3
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
        await checkout.release()


async def test_lanes_that_start_together_open_one_session_each(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url), lanes=5) as pool:
        checkouts = await asyncio.gather(*(pool.checkout() for _ in range(5)))
        assert relay.accepted == 5
        for checkout in checkouts:
            await checkout.release()
        assert await eventually(lambda: at_rest(pool))
        assert pool.statistics().open == 5


async def test_a_wait_that_is_too_long_names_pool_waiters_and_seconds(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1, acquire_timeout_s=0.3) as pool:
        held = await pool.checkout()
        waiting = [asyncio.create_task(pool.checkout()) for _ in range(3)]
        await asyncio.wait(waiting)
        errors = [task.exception() for task in waiting]
        for left, error in zip((2, 1, 0), errors, strict=True):
            assert isinstance(error, PoolTimeout)
            assert (error.pool, error.size, error.limit, error.waiters) == ("lanes", 1, 1, left)
            assert 0.29 <= error.waited_s < 2
        now = pool.statistics()
        assert (now.timeouts, now.acquires, now.waiting, now.in_use) == (3, 1, 0, 1)
        assert now.waited_s_max >= 0.29
        assert now.waited_s_total >= 0.87
        await held.release()
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1


async def test_a_server_that_is_not_there_passes_the_drivers_error_on(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url)) as pool:
        relay.refuse()
        with pytest.raises(ConnectionRefusedError):
            await pool.checkout()
        assert at_rest(pool)
        await relay.open()
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1


async def test_a_server_that_does_not_let_us_in_is_no_pool_that_is_too_small(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    relay.half_open()
    async with open_pool(relay.url(empty_database.url), acquire_timeout_s=0.1, connect_timeout_s=0.4) as pool:
        began = monotonic()
        with pytest.raises(TimeoutError, match=r"pool lanes: the database server did not let us in within 0\.4 s"):
            await pool.checkout()
        assert 0.39 <= monotonic() - began < 2
        assert at_rest(pool)


async def test_a_server_that_is_reached_directly_is_taken_for_no_pooler(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    assert not await detect_transaction_pooler(empty_database.url)
    relay = await relay_before(empty_database.url)
    assert not await detect_transaction_pooler(relay.url(empty_database.url))
    relay.half_open()
    with pytest.raises(TimeoutError):
        await detect_transaction_pooler(relay.url(empty_database.url), deadline_s=0.2)


# Nesting.


async def test_an_undeclared_second_connection_fails_at_once(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=2, headroom=2, acquire_timeout_s=30.0) as pool:
        with work():
            async with pool.acquire():
                began = monotonic()
                with pytest.raises(NestedAcquire, match="declare nested = 1") as caught:
                    await asyncio.create_task(pool.checkout())  # whichever task of this work asks
                assert monotonic() - began < 1
                assert (caught.value.pool, caught.value.nested) == ("lanes", 0)
            async with pool.acquire() as connection:
                assert await connection.fetchval("select 1") == 1


async def test_declared_nested_connections_work_and_one_more_does_not(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=2, nested=1, acquire_timeout_s=30.0) as pool:

        async def lane() -> None:
            with work():
                async with pool.acquire() as outer:
                    await both.wait()
                    async with pool.acquire() as inner:
                        assert await outer.fetchval("select pg_backend_pid()") != await inner.fetchval(
                            "select pg_backend_pid()"
                        )
                        with pytest.raises(NestedAcquire, match="declare nested = 2"):
                            await pool.checkout()

        both = asyncio.Barrier(2)
        await asyncio.gather(lane(), lane())
        assert at_rest(pool)


async def test_work_that_is_not_related_may_take_a_connection_too(empty_database: Database) -> None:
    async with open_pool(empty_database.url) as pool, pool.acquire():

        async def another() -> None:
            async with pool.acquire() as connection:
                assert await connection.fetchval("select 1") == 1

        await asyncio.create_task(another())
        with pytest.raises(NestedAcquire):
            await pool.checkout()
        with work():
            await another()


async def test_a_connection_that_could_not_be_had_does_not_count_as_held(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1, acquire_timeout_s=0.1) as pool:
        held = await asyncio.create_task(pool.checkout())
        for _ in range(2):
            with pytest.raises(PoolTimeout):
                await pool.checkout()
        await held.release()
        await (await pool.checkout()).release()


# Giving back.


async def test_a_checkout_is_given_back_once(empty_database: Database) -> None:
    async with open_pool(empty_database.url) as pool:
        checkout = await pool.checkout(folds_reset=True)
        await checkout.release()
        next_one = await asyncio.create_task(pool.checkout(folds_reset=True))
        assert next_one.pid == checkout.pid
        await checkout.release()
        checkout.terminate()
        assert await next_one.connection.fetchval("select 1") == 1
        assert pool.statistics().in_use == 1
        await next_one.release()
        assert at_rest(pool)


async def test_a_connection_kept_beyond_its_block_is_of_no_use(empty_database: Database) -> None:
    async with open_pool(empty_database.url) as pool:
        async with pool.acquire() as connection:
            pass
        with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
            await connection.execute("select 1")


async def test_an_open_transaction_is_rolled_back_and_the_session_serves_on(empty_database: Database) -> None:
    await empty_database.execute("create table effect (id integer)")
    async with open_pool(empty_database.url) as pool:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        checkout = await pool.checkout()
        await checkout.connection.execute("begin; insert into effect values (1)")
        await checkout.release()
        async with pool.acquire() as connection:
            assert await connection.fetchval("select pg_backend_pid()") == checkout.pid
            assert await connection.fetchval("select count(*) from effect") == 0
        assert reported == []


async def test_a_cancelled_user_leaves_nothing_running_and_the_session_serves_on(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1) as pool:

        async def use() -> None:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("select pg_advisory_lock(7)")
                await connection.execute("select pg_sleep(600)")

        user = asyncio.create_task(use())
        (sleeping,) = await eventually(
            lambda: empty_database.fetch(
                "select pid from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
            )
        )
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
        assert await empty_database.fetchval("select pg_try_advisory_lock(7)")
        checkout = await pool.checkout()
        assert checkout.pid == sleeping["pid"]
        assert pool.statistics().terminated == 0
        await checkout.release()


async def test_a_user_cancelled_twice_costs_the_connection_and_no_place(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url), lanes=1, release_timeout_s=30.0) as pool:
        checkout = await pool.checkout()
        relay.half_open()
        giving_back = asyncio.create_task(checkout.release())
        await asyncio.sleep(0)
        giving_back.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving_back
        assert at_rest(pool)
        relay.heal()
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1
        assert pool.statistics().terminated == 1


async def test_a_session_that_died_in_somebodys_hands_is_replaced(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1) as pool:
        for folds_reset in (False, True):
            checkout = await pool.checkout(folds_reset=folds_reset)
            await empty_database.terminate_sessions("shop-lanes")
            await eventually(checkout.connection.is_closed)
            await checkout.release()
            async with pool.acquire() as connection:
                assert await connection.fetchval("select pg_backend_pid()") != checkout.pid


async def test_a_session_that_died_in_the_pool_is_replaced(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1) as pool:
        for folds_reset in (False, True):
            checkout = await pool.checkout()
            await checkout.release()
            await empty_database.terminate_sessions("shop-lanes")
            await eventually(checkout.connection.is_closed)
            next_one = await pool.checkout(folds_reset=folds_reset)
            assert await next_one.connection.fetchval("select pg_backend_pid()") != checkout.pid
            await next_one.release()


async def test_a_session_whose_death_nobody_has_noticed_is_replaced_when_its_reset_fails(
    empty_database: Database,
) -> None:
    async with open_pool(empty_database.url, lanes=3) as pool:
        checkouts = [await asyncio.create_task(pool.checkout(folds_reset=True)) for _ in range(3)]
        for checkout in checkouts:
            await checkout.release()
        await empty_database.terminate_sessions("shop-lanes")
        async with pool.acquire() as connection:
            assert await connection.fetchval("select pg_backend_pid()") not in {one.pid for one in checkouts}


async def test_terminate_returns_at_once_whatever_the_session_does(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1, session=session(check_interval_s=0.1)) as pool:
        checkout = await pool.checkout()
        sleeping = asyncio.create_task(checkout.connection.execute("select pg_sleep(600)"))
        await eventually(
            lambda: empty_database.fetch(
                "select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
            )
        )
        began = monotonic()
        checkout.terminate()
        assert monotonic() - began < 0.1
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await sleeping
        assert at_rest(pool)
        await eventually(lambda: _none_left(empty_database), what="the end of a cut session")


# Failover and the end.


async def test_expiry_ends_idle_sessions_now_and_busy_ones_when_they_come_back(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=3) as pool:
        checkouts = [await asyncio.create_task(pool.checkout(folds_reset=True)) for _ in range(3)]
        busy, *idle = checkouts
        for checkout in idle:
            await checkout.release()
        await pool.expire()

        async def only_busy() -> bool:
            return [row["pid"] for row in await empty_database.sessions("shop-lanes")] == [busy.pid]

        await eventually(only_busy)
        assert await busy.connection.fetchval("select 1") == 1
        await busy.release()
        await eventually(lambda: _none_left(empty_database))
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1
        assert pool.statistics().open == 1


async def test_close_is_over_at_its_deadline_and_leaves_no_session_behind(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1, headroom=1, session=session(check_interval_s=0.1)) as pool:
        busy = await asyncio.create_task(pool.checkout())
        await (await asyncio.create_task(pool.checkout())).release()
        sleeping = asyncio.create_task(busy.connection.execute("select pg_sleep(600)"))
        await eventually(
            lambda: empty_database.fetch(
                "select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
            )
        )
        began = monotonic()
        await pool.close(0.3)
        assert 0.29 <= monotonic() - began < 1
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await sleeping
        await eventually(lambda: _none_left(empty_database), what="the end of all sessions")
        await busy.release()
        assert at_rest(pool)


async def test_close_waits_for_those_who_give_back_in_time(empty_database: Database) -> None:
    async with open_pool(empty_database.url) as pool:
        checkout = await pool.checkout()
        closing = asyncio.create_task(pool.close(30.0))
        await eventually(lambda: pool._pool is not None and pool._pool.is_closing())
        assert await checkout.connection.fetchval("select 1") == 1
        await checkout.release()
        await closing
        assert pool.statistics().terminated == 0
        await eventually(lambda: _none_left(empty_database))


async def test_who_waits_while_a_pool_closes_is_told_at_once(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1, acquire_timeout_s=30.0) as pool:
        held = await pool.checkout()
        waiting = asyncio.create_task(pool.checkout())
        await eventually(lambda: pool.statistics().waiting == 1)
        closing = asyncio.create_task(pool.close(30.0))
        with pytest.raises(PoolNotOpen):
            await asyncio.wait_for(waiting, 2)
        await held.release()
        await closing
        with pytest.raises(PoolNotOpen):
            await pool.checkout()
        with pytest.raises(PoolNotOpen):
            await pool.open()


async def test_who_opens_a_session_while_a_pool_closes_is_told_and_leaves_none(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url)) as pool:
        relay.half_open()
        opening = asyncio.create_task(pool.checkout())
        await eventually(lambda: relay.connections)
        await pool.close(0.1)
        relay.heal()
        with pytest.raises(PoolNotOpen):
            await opening
        await eventually(lambda: _none_left(empty_database))


async def test_who_opens_a_session_while_a_pool_closes_does_not_wait_for_a_farewell(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url)) as pool:
        relay.half_open()
        opening = asyncio.create_task(pool.checkout())
        await eventually(lambda: relay.connections)
        await pool.close(0.1)
        relay.hold_on(TERMINATE, Direction.TO_SERVER)
        relay.heal()
        with pytest.raises(PoolNotOpen):
            await asyncio.wait_for(opening, 2)


async def test_all_pools_close_at_the_same_time(empty_database: Database) -> None:
    specs = [
        PoolSpec(name=name, application_name=f"shop-{name}", lanes=1, session=session(check_interval_s=0.1))
        for name in ("one", "two", "three")
    ]
    pools = Pools(empty_database.url, specs)
    await pools.open()
    held = [await pool.checkout() for pool in pools]
    assert [statistics.in_use for statistics in pools.statistics()] == [1, 1, 1]
    began = monotonic()
    await pools.close(0.4)
    assert 0.39 <= monotonic() - began < 1.1
    for checkout in held:
        assert checkout.connection.is_closed()
    await eventually(lambda: _none_left(empty_database))


async def _none_left(database: Database) -> bool:
    return await database.sessions() == []
