"""The transaction that a handler gets: one session, one attempt, one task at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from inbox import Attempt, Tx, TxBroken, TxDead
from inbox.claiming import DRIVER_ERRORS
from inbox.outcomes import Processed, Unknown, Waiting
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.inboxes import (
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    assert_charged,
    done_next_time,
    key_is_locked,
    message,
    standing,
)
from tests.support.ledger import INSERT
from tests.support.relay import RelayBefore

# Use after the attempt.


USES: dict[str, Callable[[Tx], Awaitable[object]]] = {
    "execute": lambda tx: tx.execute("select 1"),
    "executemany": lambda tx: tx.executemany("select $1::int", [(1,)]),
    "fetch": lambda tx: tx.fetch("select 1"),
    "fetchrow": lambda tx: tx.fetchrow("select 1"),
    "fetchval": lambda tx: tx.fetchval("select 1"),
    "cursor": lambda tx: anext(tx.cursor("select 1")),
    "copy": lambda tx: tx.copy("ledger", records=[]),
    "savepoint": lambda tx: tx.savepoint().__aenter__(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("ending", [None, ValueError("no")], ids=["after success", "after failure"])
async def test_every_use_after_the_attempt_raises(
    process: StartProcess, database: Database, use: str, ending: BaseException | None
) -> None:
    one, kept = await process(), list[Tx]()

    async def keep(_: Attempt, tx: Tx) -> None:
        kept.append(tx)
        if ending is not None:
            raise ending

    await one.attempt(message(), Handler(keep))
    with pytest.raises(TxDead):
        await USES[use](kept[0])
    assert await database.fetchval("select count(*) from ledger") == (1 if ending is None else 0)


async def test_a_leaked_task_cannot_use_the_tx_of_an_attempt_that_is_over(
    process: StartProcess, database: Database
) -> None:
    one, go, leaked = await process(), asyncio.Event(), list[asyncio.Task[str]]()

    async def leak(_: Attempt, tx: Tx) -> None:
        async def later() -> str:
            await go.wait()
            return await tx.execute(INSERT, "m-1", 1, "leaked")

        leaked.append(asyncio.create_task(later()))

    assert await one.attempt(message(), Handler(leak)) == Processed(1)
    go.set()
    with pytest.raises(TxDead):
        await leaked[0]
    assert await standing(database, message()) == PROCESSED


async def test_a_statement_that_still_runs_when_its_handler_returns_fails_the_attempt(
    process: StartProcess, database: Database
) -> None:
    one, leaked = await process(), list[asyncio.Task[str]]()

    async def leak(_: Attempt, tx: Tx) -> None:
        leaked.append(asyncio.create_task(tx.execute("select pg_sleep(60)")))
        await asyncio.sleep(0)

    outcome = await one.attempt(message(), Handler(leak))
    assert outcome == Waiting(1, 0.0, charged=True, error_class="inbox.errors.TxBroken")
    await assert_charged(database, "inbox.errors.TxBroken")
    with pytest.raises(asyncio.CancelledError):
        await leaked[0]
    await done_next_time(one)


async def test_a_cursor_that_is_kept_cannot_be_read_after_the_attempt(
    process: StartProcess, database: Database
) -> None:
    one, kept = await process(), list[Any]()

    async def keep(_: Attempt, tx: Tx) -> None:
        rows = tx.cursor("select generate_series(1, 100)", prefetch=1)
        assert (await anext(rows))[0] == 1
        kept.append(rows)

    assert await one.attempt(message(), Handler(keep)) == Processed(1)
    with pytest.raises(TxDead):
        await anext(kept[0])


# Errors of the database.


async def fail_in_sql(_: Attempt, tx: Tx) -> None:
    await tx.execute("insert into ledger (message_id, attempt, writer) values (null, 1, 'x')")


async def test_a_database_error_that_the_handler_swallowed_is_a_charged_failure_and_named(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def swallow(attempt: Attempt, tx: Tx) -> None:
        with pytest.raises(asyncpg.NotNullViolationError):
            await fail_in_sql(attempt, tx)

    outcome = await one.attempt(message(), Handler(swallow))
    assert outcome == Waiting(1, 0.0, charged=True, error_class="inbox.errors.TxBroken")
    await assert_charged(database, "inbox.errors.TxBroken")
    assert "swallowed a database error" in await database.fetchval("select error_text from inbox.attempt")
    await done_next_time(one)


async def test_a_statement_that_the_handler_gave_up_by_itself_aborts_the_transaction_too(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def swallow(_: Attempt, tx: Tx) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await tx.execute("select pg_sleep(60)")

    outcome = await one.attempt(message(), Handler(swallow))
    assert outcome == Waiting(1, 0.0, charged=True, error_class="inbox.errors.TxBroken")
    await assert_charged(database, "inbox.errors.TxBroken")
    await done_next_time(one)


async def test_a_statement_that_misses_a_deadline_of_its_own_is_nobodys_fault(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def slow(_: Attempt, tx: Tx) -> None:
        await tx.execute("select pg_sleep(60)", timeout=0.05)

    assert await one.attempt(message(), Handler(slow)) == Waiting(1, 0.0, charged=False, error_class="TimeoutError")
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))
    await done_next_time(one)


async def test_a_deferred_constraint_fails_at_the_stamp_and_is_recorded_in_the_claims_own_transaction(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    await database.execute(
        "create table customer (id integer primary key);"
        "create table invoice (customer_id integer references customer deferrable initially deferred)"
    )
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def violate(_: Attempt, tx: Tx) -> None:
        await tx.execute("insert into invoice values (1)")

    undoing = relay.hold_on(b"ROLLBACK TO", Direction.TO_SERVER)
    running = asyncio.create_task(one.attempt(message(), Handler(violate)))
    await undoing.reached.wait()
    assert await key_is_locked(database, message())
    assert (await standing(database, message())).state is None
    committing = relay.hold_on(b"COMMIT", Direction.TO_SERVER)
    undoing.release()
    await committing.reached.wait()
    assert await key_is_locked(database, message())
    committing.release()

    error_class = "asyncpg.exceptions.ForeignKeyViolationError"
    assert await running == Waiting(1, 0.0, charged=True, error_class=error_class)
    await assert_charged(database, error_class)
    assert await database.fetchval("select count(*) from invoice") == 0
    await done_next_time(one)


async def test_a_trigger_that_the_handler_deferred_fails_the_attempt_not_the_fleet(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await database.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'too late'; end $$;"
        "create constraint trigger late after insert on ledger deferrable initially deferred "
        "for each row execute function refuse()"
    )
    error_class = "asyncpg.exceptions.RaiseError"
    assert await one.attempt(message(), Handler()) == Waiting(1, 0.0, charged=True, error_class=error_class)
    await assert_charged(database, error_class)


async def test_every_call_fails_once_the_session_is_lost_and_nothing_reconnects_under_the_handler(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    errors: list[BaseException] = []

    async def lose(_: Attempt, tx: Tx) -> None:
        await one.end_sessions()
        for call in (tx.execute, tx.fetch, tx.fetchrow, tx.fetchval):
            try:
                await call("select 1")
            except DRIVER_ERRORS as error:
                errors.append(error)

    assert isinstance(await one.attempt(message(), Handler(lose)), Unknown)
    assert len(errors) == 4
    assert await standing(database, message()) == Standing(receipts=0, effects=0)
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(1)


# Two tasks.


async def test_two_tasks_on_one_tx_fail_the_attempt_and_leave_the_session_to_the_next_message(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def both(_: Attempt, tx: Tx) -> None:
        await asyncio.gather(tx.execute("select pg_sleep(0.05)"), tx.execute(INSERT, "m-1", 1, "second"))

    outcome = await one.attempt(message(), Handler(both))
    assert outcome == Waiting(1, 0.0, charged=True, error_class="inbox.errors.TxBroken")
    await assert_charged(database, "inbox.errors.TxBroken")
    assert await one.attempt(message("m-2"), Handler(message_id="m-2")) == Processed(1)
    await done_next_time(one)


async def test_two_tasks_on_one_tx_fail_the_attempt_although_the_handler_swallowed_it(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def both(_: Attempt, tx: Tx) -> None:
        answers = await asyncio.gather(tx.execute("select 1"), tx.execute("select 1"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [str, TxBroken]

    await one.attempt(message(), Handler(both))
    await assert_charged(database, "inbox.errors.TxBroken")
    assert "two tasks used one tx" in await database.fetchval("select error_text from inbox.attempt")


async def test_blocks_of_two_tasks_that_overlap_are_found_out(process: StartProcess, database: Database) -> None:
    one = await process()
    first_is_open, second_is_open = asyncio.Event(), asyncio.Event()

    async def overlap(_: Attempt, tx: Tx) -> None:
        async def first() -> None:
            async with tx.savepoint():
                first_is_open.set()
                await second_is_open.wait()

        async def second() -> None:
            await first_is_open.wait()
            async with tx.savepoint():
                await tx.execute(INSERT, "m-1", 1, "second")
                second_is_open.set()
                await outer

        outer = asyncio.ensure_future(first())
        await second()

    outcome = await one.attempt(message(), Handler(overlap))
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("failed", True),))
