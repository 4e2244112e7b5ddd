"""Pools on lines that break: no connection is lost, and nobody waits longer than told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

import asyncpg
import pytest

from pools import SESSION_RESET, Pool
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.pools import at_rest, open_pool, session
from tests.support.relay import RelayBefore

SIZE = 4
IMPATIENT = 2000


class Undo(Exception):
    """Ends a transaction without effects."""


async def use_like_new(pool: Pool) -> None:
    with suppress(Undo):
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("insert into effect values (1)")
            await connection.execute("select pg_sleep(0.005)")
            raise Undo


async def use_folding(pool: Pool) -> None:
    checkout = await pool.checkout(folds_reset=True)
    try:
        await checkout.connection.execute(f"{SESSION_RESET};BEGIN")
        await checkout.connection.execute("insert into effect values (1)")
        await checkout.connection.execute("ROLLBACK")
    finally:
        await checkout.release()


async def test_cancelled_acquires_never_shrink_the_pool_and_never_hurt_a_neighbour(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    await empty_database.execute("create table effect (id integer)")
    relay = await relay_before(empty_database.url)
    relay.delay(0.001)
    moments = random.Random(31)
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: is_the_drivers(context) or reported.append(context))
    async with open_pool(relay.url(empty_database.url), lanes=SIZE, acquire_timeout_s=30.0) as pool:
        cancelled = 0
        over = asyncio.Event()

        async def be_impatient(number: int) -> None:
            use = (use_like_new, use_folding)[number % 2]
            user = asyncio.create_task(use(pool))
            loop.call_later(moments.uniform(0, 0.03), user.cancel)
            await asyncio.wait({user})
            nonlocal cancelled
            cancelled += user.cancelled()
            assert user.cancelled() or user.exception() is None

        async def be_a_neighbour() -> int:
            served = 0
            while not over.is_set():
                async with pool.acquire() as connection:
                    assert await connection.fetchval("select $1::integer", served) == served
                served += 1
            return served

        async with asyncio.TaskGroup() as group:
            neighbours = [group.create_task(be_a_neighbour()) for _ in range(2)]
            async with asyncio.TaskGroup() as impatient:
                numbers = iter(range(IMPATIENT))
                for _ in range(3 * SIZE):
                    impatient.create_task(each(numbers, be_impatient))
            over.set()

        assert cancelled > IMPATIENT / 4
        assert all(task.result() > 0 for task in neighbours)
        await eventually(lambda: at_rest(pool), what="a pool at rest")
        relay.heal()
        checkouts = [await asyncio.create_task(pool.checkout()) for _ in range(SIZE)]
        for checkout in checkouts:
            assert await checkout.connection.fetchval("select pg_current_xact_id_if_assigned() is null")
            assert not checkout.connection.is_in_transaction()
        assert pool.statistics().open == SIZE
        for checkout in checkouts:
            await checkout.release()
        assert at_rest(pool)
    assert await empty_database.fetchval("select count(*) from effect") == 0
    assert reported == []


def is_the_drivers(context: dict[str, Any]) -> bool:
    """Whether a report is of a connection that was given up while it asked the server for TLS: the driver leaves the
    future of the answer to nobody then."""
    return isinstance(context.get("exception"), ConnectionError) and "connection_lost" in str(context["exception"])


async def each(numbers: Iterator[int], act: Callable[[int], Awaitable[None]]) -> None:
    for number in numbers:
        await act(number)


@pytest.mark.parametrize("folds_reset", [False, True])
async def test_giving_back_is_over_in_time_when_the_line_is_dead_and_the_cancel_request_too(
    empty_database: Database, relay_before: RelayBefore, folds_reset: bool
) -> None:
    await empty_database.execute("create table stock (id integer); insert into stock values (1)")
    relay = await relay_before(empty_database.url)
    # The relay keeps the server's end of the line open, as a middle box may: only the statement's end frees its locks.
    settings = session(statement_timeout_s=1.0)
    async with open_pool(relay.url(empty_database.url), lanes=1, release_timeout_s=0.4, session=settings) as pool:
        checkout = await pool.checkout(folds_reset=folds_reset)
        await checkout.connection.execute("begin")
        holding = asyncio.create_task(
            checkout.connection.execute("select pg_sleep(600) from (select from stock for update) as held")
        )
        await eventually(
            lambda: empty_database.fetch(
                "select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
            )
        )
        relay.refuse()
        relay.half_open()
        holding.cancel()
        await asyncio.wait({holding})
        began = monotonic()
        await checkout.release()
        assert monotonic() - began < 1.0
        assert at_rest(pool)
        assert pool.statistics().terminated == 1
        await empty_database.execute("set lock_timeout = '3s'")
        assert await empty_database.fetchval("select id from stock for update") == 1
        relay.heal()
        await relay.open()
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1


async def test_a_release_whose_answer_is_lost_is_over_in_time(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url), lanes=1, release_timeout_s=0.3) as pool:
        checkout = await pool.checkout()
        relay.drop(Direction.TO_CLIENT)
        began = monotonic()
        await checkout.release()
        assert 0.29 <= monotonic() - began < 1.0
        assert at_rest(pool)
        assert pool.statistics().terminated == 1


async def test_a_half_open_line_is_found_out_in_time_and_work_goes_on_when_there_is_one_again(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    settings = session(statement_timeout_s=0.4, answer_grace_s=0.2)
    async with open_pool(
        relay.url(empty_database.url), release_timeout_s=0.3, connect_timeout_s=0.5, session=settings
    ) as pool:
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1
        relay.half_open()
        began = monotonic()
        with pytest.raises(TimeoutError):
            async with pool.acquire() as connection:
                await connection.fetchval("select 1")  # on a session from before, with no deadline of its own
        assert monotonic() - began < 2.0
        began = monotonic()
        with pytest.raises(TimeoutError, match="did not let us in"):
            await pool.checkout()
        assert monotonic() - began < 1.5
        relay.heal()
        async with pool.acquire() as connection:
            assert await connection.fetchval("select 1") == 1
        assert at_rest(pool)


async def test_a_session_that_does_not_answer_its_reset_is_replaced_within_the_deadline(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url), lanes=1, release_timeout_s=0.3) as pool:
        checkout = await pool.checkout(folds_reset=True)
        await checkout.release()
        held = relay.hold_on(b"UNLISTEN", Direction.TO_SERVER)
        began = monotonic()
        async with pool.acquire() as connection:
            assert await connection.fetchval("select pg_backend_pid()") != checkout.pid
        assert held.reached.is_set()
        assert 0.29 <= monotonic() - began < 2.0
        assert pool.statistics().terminated == 1


async def test_sessions_that_do_not_answer_their_resets_keep_nobody_beyond_the_deadline(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(
        relay.url(empty_database.url), lanes=SIZE, acquire_timeout_s=0.5, release_timeout_s=0.3
    ) as pool:
        checkouts = [await asyncio.create_task(pool.checkout(folds_reset=True)) for _ in range(SIZE)]
        for checkout in checkouts:
            await checkout.release()
        relay.half_open()
        began = monotonic()
        with pytest.raises(TimeoutError, match=r"pool lanes: a session did not answer within 0\.3 s"):
            await pool.checkout()
        assert 0.49 <= monotonic() - began < 1.5
        assert at_rest(pool)


async def test_a_line_that_is_cut_costs_the_connection_and_no_place(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url)) as pool:
        for _ in range(3):
            with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
                async with pool.acquire() as connection:
                    await connection.fetchval("select 1")
                    relay.cut()
                    await connection.fetchval("select 1")
            assert at_rest(pool)


async def test_close_is_over_at_its_deadline_on_a_dead_line_too(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    async with open_pool(relay.url(empty_database.url), lanes=3) as pool:
        checkouts = [await asyncio.create_task(pool.checkout()) for _ in range(3)]
        for checkout in checkouts[1:]:
            await checkout.release()
        relay.half_open()
        began = monotonic()
        await pool.close(0.4)
        assert monotonic() - began < 1.0
        assert all(checkout.connection.is_closed() for checkout in checkouts)
