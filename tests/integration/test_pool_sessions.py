"""Nothing that a user left in a session reaches the next one, by either way of taking a connection."""

from __future__ import annotations

import asyncio
import warnings
from uuid import UUID

import asyncpg
import pytest

from inbox import statements
from pools import SESSION_RESET, Connection
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.leaks import FOLDABLE, LEAKS, PREPARATION, UNFOLDABLE, answer_like_new, leave
from tests.support.pools import open_pool, session

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"


@pytest.mark.parametrize("kind", LEAKS)
async def test_what_a_user_left_does_not_reach_one_who_takes_a_session_like_new(
    empty_database: Database, kind: str
) -> None:
    leak = LEAKS[kind]
    await empty_database.execute(PREPARATION)
    async with open_pool(empty_database.url, lanes=1) as pool:
        like_new = await answer_like_new(pool, leak)
        dirty = await leave(pool, leak)
        async with pool.acquire() as connection:
            assert await connection.fetchval(leak.look) == like_new
            # SQL's own PREPARE is undone by nothing but the end of the session.
            assert (await connection.fetchval("select pg_backend_pid()") == dirty.pid) is (kind != "PREPARE")


@pytest.mark.parametrize("kind", FOLDABLE)
async def test_what_a_user_left_does_not_reach_one_who_folds_the_reset_not_even_after_a_rollback(
    empty_database: Database, kind: str
) -> None:
    leak = FOLDABLE[kind]
    await empty_database.execute(PREPARATION)
    async with open_pool(empty_database.url, lanes=1) as pool:
        like_new = await answer_like_new(pool, leak)
        dirty = await leave(pool, leak)
        checkout = await pool.checkout(folds_reset=True)
        assert checkout.pid == dirty.pid
        assert await checkout.connection.execute(f"{SESSION_RESET};{BEGIN};SAVEPOINT s") == "SAVEPOINT"
        assert await checkout.connection.fetchval(leak.look) == like_new
        await checkout.connection.execute("ROLLBACK")
        assert await checkout.connection.fetchval(leak.look) == like_new
        await checkout.release()


@pytest.mark.parametrize("kind", LEAKS)
async def test_one_who_did_not_fold_the_reset_leaves_a_session_like_new(empty_database: Database, kind: str) -> None:
    leak = LEAKS[kind]
    await empty_database.execute(PREPARATION)
    async with open_pool(empty_database.url, lanes=1) as pool:
        like_new = await answer_like_new(pool, leak)
        async with pool.acquire() as connection:
            await connection.execute(leak.leave)
        checkout = await pool.checkout(folds_reset=True)
        assert await checkout.connection.fetchval(leak.look) == like_new
        await checkout.release()


async def test_a_session_lock_that_was_left_is_free_as_soon_as_its_session_is_idle(empty_database: Database) -> None:
    async with open_pool(empty_database.url) as pool:
        async with pool.acquire() as connection:
            await connection.execute("select pg_advisory_lock(7)")
        assert await empty_database.fetchval("select pg_try_advisory_lock(7)")


@pytest.mark.parametrize("call", ["claim", "hold"])
async def test_a_claim_gives_back_session_locks_that_were_left(database: Database, call: str) -> None:
    async with open_pool(database.url, lanes=1) as pool:
        await leave(pool, UNFOLDABLE["session lock"])
        checkout = await pool.checkout(folds_reset=True)
        key = UUID(int=1)
        sql = statements.claim(key, UUID(int=2)) if call == "claim" else statements.hold(key)
        assert await checkout.connection.execute(sql) == "SELECT 0"
        assert await database.fetchval("select pg_try_advisory_lock(7)")
        await checkout.release()


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_the_folded_reset_leaves_the_next_transaction_as_it_should_be(
    empty_database: Database, isolation: str
) -> None:
    version_num = await empty_database.fetchval("select current_setting('server_version_num')::integer")
    settings = session(transaction_timeout_s=61.0)
    async with open_pool(empty_database.url, lanes=1, session=settings) as pool:
        checkout = await pool.checkout(folds_reset=True)
        connection = checkout.connection
        for statement in (
            f"set default_transaction_isolation = '{isolation}'",
            "set default_transaction_read_only = on",
            "set statement_timeout = '1ms'",
            "set application_name = 'eve'",
        ):
            await connection.execute(statement)
        assert await connection.execute(f"{SESSION_RESET};{BEGIN};SAVEPOINT s") == "SAVEPOINT"
        assert connection.is_in_transaction()
        for name, value in {
            "transaction_isolation": "read committed",
            "transaction_read_only": "off",
            "default_transaction_read_only": "off",
        }.items():
            assert await connection.fetchval("select current_setting($1)", name) == value
        told = pool.spec.session.server_settings(version_num) | {"application_name": "shop-lanes"}
        for name, value in told.items():
            assert await connection.fetchval("select setting from pg_settings where name = $1", name) == value
        await connection.execute("create table written (id integer)")
        await checkout.release()


async def test_a_transaction_that_a_user_left_open_is_never_committed_by_the_next_ones_reset(
    empty_database: Database,
) -> None:
    await empty_database.execute("create table effect (id integer)")
    async with open_pool(empty_database.url, lanes=1) as pool:
        for _ in range(20):
            checkout = await pool.checkout(folds_reset=True)
            writing = asyncio.create_task(checkout.connection.execute("begin; insert into effect values (1)"))
            await asyncio.sleep(0)
            writing.cancel()  # it may have succeeded on the server, and the client does not know
            await asyncio.wait({writing})
            await checkout.release()
            next_one = await pool.checkout(folds_reset=True)
            await next_one.connection.execute(f"{SESSION_RESET};{BEGIN};COMMIT")
            await next_one.release()
        assert await empty_database.fetchval("select count(*) from effect") == 0


@pytest.mark.parametrize("folds_reset", [False, True])
async def test_statements_that_the_driver_has_prepared_outlive_every_reset(
    empty_database: Database, folds_reset: bool
) -> None:
    async with open_pool(empty_database.url, lanes=1) as pool:

        async def use(connection: Connection) -> object:
            await connection.fetchval("select $1::integer + 1", 1)
            return await connection.fetchval(
                "select array_agg(name || prepare_time::text) from pg_prepared_statements where statement like '%+ 1'"
            )

        names = []
        for _ in range(3):
            checkout = await pool.checkout(folds_reset=folds_reset)
            if folds_reset:
                await checkout.connection.execute(f"{SESSION_RESET};BEGIN;COMMIT")
            names.append(await use(checkout.connection))
            await checkout.release()
        assert names[0] is not None
        assert names == [names[0]] * 3


async def test_a_session_that_is_spoilt_costs_its_next_user_nothing(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1) as pool:
        await leave(pool, UNFOLDABLE["PREPARE"])
        async with pool.acquire() as connection:
            await connection.execute("prepare kept as select 2")
        async with pool.acquire() as connection:
            await connection.execute("prepare kept as select 3")
        assert pool.statistics().terminated == 3
        assert pool.statistics().in_use == 0


async def test_a_listener_that_was_left_hears_nothing_any_more(empty_database: Database) -> None:
    heard: list[object] = []
    async with open_pool(empty_database.url, lanes=1) as pool:
        checkout = await pool.checkout(folds_reset=True)
        await checkout.connection.add_listener("news", lambda *notice: heard.append(notice))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", asyncpg.InterfaceWarning)
            await checkout.release()
        next_one = await pool.checkout(folds_reset=True)
        assert next_one.pid == checkout.pid
        arrived = asyncio.Event()
        await next_one.connection.add_listener("end", lambda *_: arrived.set())
        await empty_database.execute("notify news")
        await empty_database.execute('notify "end"')
        await eventually(arrived.is_set)
        assert heard == []
        next_one.terminate()


async def test_a_session_like_new_is_not_reset_again(empty_database: Database) -> None:
    async with open_pool(empty_database.url, lanes=1) as pool:
        checkout = await pool.checkout()
        await checkout.connection.execute("select 1")
        calls = checkout.connection._protocol.queries_count
        await checkout.release()
        next_one = await pool.checkout()
        assert next_one.pid == checkout.pid
        assert next_one.connection._protocol.queries_count == calls + 1  # one reset, when the first gave it back
        await next_one.release()
