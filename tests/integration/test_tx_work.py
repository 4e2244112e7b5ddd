"""What a handler can do with its transaction, and what it cannot leave behind."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from inbox import Attempt, Tx, TxRefused
from inbox.outcomes import Processed, Waiting
from inbox.tx import MAX_SAVEPOINTS
from tests.support.databases import Database
from tests.support.inboxes import (
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    done_next_time,
    message,
    standing,
)
from tests.support.ledger import INSERT

# Nested blocks.


async def test_a_nested_block_undoes_what_failed_inside_and_keeps_the_rest(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def nest(_: Attempt, tx: Tx) -> None:
        with pytest.raises(asyncpg.NotNullViolationError):
            async with tx.savepoint():
                await tx.execute(INSERT, "inside", 1, "handler")
                await tx.execute("insert into ledger (message_id, attempt, writer) values (null, 1, 'handler')")
        async with tx.savepoint():
            await tx.execute(INSERT, "kept", 1, "handler")
            with pytest.raises(ValueError, match="mine"):
                async with tx.savepoint():
                    await tx.execute(INSERT, "deeper", 1, "handler")
                    raise ValueError("mine")

    assert await one.attempt(message(), Handler(nest)) == Processed(1)
    written = await database.fetch("select message_id from ledger order by entry")
    assert [row["message_id"] for row in written] == ["m-1", "kept"]


async def test_an_error_that_was_undone_by_its_block_does_not_excuse_a_later_one(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def undo_then_fail(_: Attempt, tx: Tx) -> None:
        with pytest.raises(asyncpg.DeadlockDetectedError):
            async with tx.savepoint():
                await tx.execute("do $$ begin raise exception 'a deadlock' using errcode = '40P01'; end $$")
        raise ValueError("of my own")

    handler = Handler(undo_then_fail)
    assert await one.attempt(message(), handler) == Waiting(1, 0.0, charged=True, error_class="ValueError")
    assert len(handler.calls) == 1


async def test_an_attempt_has_thirty_nested_blocks_and_the_next_one_is_refused_by_name(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def many(_: Attempt, tx: Tx) -> None:
        for number in range(MAX_SAVEPOINTS):
            async with tx.savepoint():
                await tx.execute(INSERT, f"block {number}", 1, "handler")
        with pytest.raises(TxRefused, match="30 nested blocks at most"):
            async with tx.savepoint():
                raise AssertionError("it was opened")
        await tx.execute(INSERT, "after", 1, "handler")

    assert await one.attempt(message(), Handler(many, writes=False)) == Processed(1)
    assert await database.fetchval("select count(*) from ledger") == MAX_SAVEPOINTS + 1


async def test_a_session_with_all_of_its_blocks_has_not_overflowed_its_subtransactions(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    if await database.fetchval("select current_setting('server_version_num')::int < 160000"):
        pytest.skip("pg_stat_get_backend_subxact came with PostgreSQL 16")
    seen: list[tuple[int, bool]] = []

    async def many(_: Attempt, tx: Tx) -> None:
        for number in range(MAX_SAVEPOINTS):
            async with tx.savepoint():
                await tx.execute(INSERT, f"block {number}", 1, "handler")
        row = await tx.fetchrow(
            "select (pg_stat_get_backend_subxact(id)).* from pg_stat_get_backend_idset() id "
            "where pg_stat_get_backend_pid(id) = pg_backend_pid()"
        )
        assert row is not None
        seen.append((row["subxact_count"], row["subxact_overflowed"]))

    assert await one.attempt(message(), Handler(many)) == Processed(1)
    assert seen[0][0] <= MAX_SAVEPOINTS + 1
    assert seen[0][1] is False


# Every way to work.


async def test_every_way_to_work_writes_in_the_attempts_transaction(process: StartProcess, database: Database) -> None:
    one = await process()

    async def work(_: Attempt, tx: Tx) -> None:
        assert await tx.execute(INSERT, "execute", 1, "w") == "INSERT 0 1"
        assert (
            await tx.execute("insert into ledger (message_id, attempt, writer) values ('plain', 1, 'w')")
            == "INSERT 0 1"
        )
        await tx.executemany(INSERT, [(f"many {number}", 1, "w") for number in range(3)])
        copied = await tx.copy(
            "ledger", records=[("copy", 1, "w"), ("copy", 2, "w")], columns=["message_id", "attempt", "writer"]
        )
        assert copied == "COPY 2"
        assert len(await tx.fetch("select * from ledger where writer = $1", "w")) == 7
        row = await tx.fetchrow("select attempt, writer from ledger where message_id = 'execute'")
        assert row is not None
        assert tuple(row) == (1, "w")
        assert await tx.fetchrow("select 1 where false") is None
        assert await tx.fetchval("select 1, 2", column=1) == 2
        assert await tx.fetchval("select 1 where false") is None
        # One session and one transaction for all of it, and nobody else sees it yet.
        assert await database.fetchval("select count(*) from ledger") == 0

    assert await one.attempt(message(), Handler(work, writes=False)) == Processed(1)
    assert await database.fetchval("select count(*) from ledger") == 7


async def test_a_cursor_reads_in_pages_and_lets_other_statements_run_between_two_rows(
    process: StartProcess, database: Database
) -> None:
    one, read = await process(), list[int]()

    async def page(_: Attempt, tx: Tx) -> None:
        async for row in tx.cursor("select generate_series($1::int, 7)", 1, prefetch=3):
            read.append(row[0])
            await tx.execute(INSERT, f"row {row[0]}", 1, "handler")

    assert await one.attempt(message(), Handler(page, writes=False)) == Processed(1)
    assert read == [1, 2, 3, 4, 5, 6, 7]
    assert await database.fetchval("select count(*) from ledger") == 7


async def test_a_cursor_that_is_not_read_to_its_end_does_not_keep_the_attempt_from_its_commit(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def first_row_only(_: Attempt, tx: Tx) -> None:
        async for _row in tx.cursor("select generate_series(1, 1000)", prefetch=10):
            break

    assert await one.attempt(message(), Handler(first_row_only)) == Processed(1)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("statement", ["copy ledger from stdin", "copy ledger to stdout"])
async def test_a_copy_by_statement_is_an_error_and_not_a_session_that_waits(
    process: StartProcess, database: Database, statement: str
) -> None:
    one = await process()

    async def copy(_: Attempt, tx: Tx) -> None:
        await tx.execute(statement)

    async with asyncio.timeout(5):
        outcome = await one.attempt(message(), Handler(copy))
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    await done_next_time(one)


@pytest.mark.parametrize("statement", ["", ";", "-- nothing"])
async def test_an_empty_statement_does_no_harm(process: StartProcess, database: Database, statement: str) -> None:
    one = await process()

    async def nothing(_: Attempt, tx: Tx) -> None:
        assert await tx.execute(statement) == ""
        assert await tx.fetch(statement) == []

    assert await one.attempt(message(), Handler(nothing)) == Processed(1)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("text", ["\ud800", "\x00"], ids=["surrogate", "nul"])
@pytest.mark.parametrize("place", ["statement", "argument", "table", "column"])
async def test_text_that_the_server_refuses_is_the_handlers_failure_and_the_session_lives(
    process: StartProcess, database: Database, text: str, place: str
) -> None:
    one = await process()

    async def write(_: Attempt, tx: Tx) -> None:
        match place:
            case "statement":
                await tx.execute(f"select '{text}'")
            case "argument":
                await tx.execute(INSERT, text, 1, "handler")
            case "table":
                await tx.copy(f"ledger{text}", records=[(1,)])
            case "column":
                await tx.copy("ledger", records=[(1,)], columns=[f"attempt{text}"])

    outcome = await one.attempt(message(), Handler(write))
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("failed", True),))
    assert one.pool.statistics().terminated == 0
    await done_next_time(one)


async def test_what_a_handler_left_in_its_session_is_not_there_for_the_next_message(
    process: StartProcess, database: Database
) -> None:
    one = await process(lanes=1, headroom=0)
    seen: list[Any] = []

    async def leave(_: Attempt, tx: Tx) -> None:
        await tx.fetchval("select set_config('app.tenant', 'first', false)")
        await tx.fetchval("select set_config('search_path', 'nowhere', false)")
        await tx.execute("create temporary table left_over ()")
        await tx.fetchval("select pg_advisory_lock(4711)")

    async def look(_: Attempt, tx: Tx) -> None:
        seen.append(
            await tx.fetchrow(
                "select nullif(current_setting('app.tenant', true), ''), current_setting('search_path'), "
                "to_regclass('pg_temp.left_over'), "
                "(select count(*) from pg_locks where locktype = 'advisory' and objid = 4711)"
            )
        )

    search_path = await database.fetchval("show search_path")
    assert await one.attempt(message(), Handler(leave)) == Processed(1)
    assert await one.attempt(message("m-2"), Handler(look, message_id="m-2")) == Processed(1)
    assert await one.attempt(message("m-3"), Handler(look, message_id="m-3"), redelivered=True) == Processed(1)
    assert [tuple(row) for row in seen] == [(None, search_path, None, 0)] * 2
    assert one.pool.statistics().open == 1
