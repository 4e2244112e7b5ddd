"""The transaction that a handler gets: one session, one attempt, and no way for the handler to end it unseen."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from inbox import Attempt, Policy, Tx, TxBroken, TxDead, TxRefused, running
from inbox.claiming import DRIVER_ERRORS
from inbox.outcomes import Processed, Stopped, Unknown, Waiting
from inbox.queries import query
from inbox.tx import MAX_SAVEPOINTS
from pools import SessionSettings
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import PROCESSED, Handler, Process, Standing, StartProcess, key_is_locked, message, standing
from tests.support.ledger import INSERT
from tests.support.relay import Direction, RelayBefore, Rule

BRIEF = Policy(max_attempts=3, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=0.2)


def raw(tx: Tx) -> asyncpg.Connection[Any]:
    """Return the session behind a tx, as a handler could that does not care for what is private."""
    return tx._connection


async def charged(database: Database, error: str, *, effects: int = 0, outcome: str = "failed") -> None:
    """Assert that the message waits after one charged attempt with this error, unstamped."""
    found = await standing(database, message())
    assert found == Standing(receipts=0, effects=effects, state="waiting", attempts=((outcome, True),))
    assert found.errors == (error,)


async def done_next_time(one: Process) -> None:
    """Assert that the message can be processed by its next copy."""
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)


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
    await charged(database, "inbox.errors.TxBroken")
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


# Ending the transaction.


RAW_ENDINGS = {
    "commit": ("COMMIT",),
    "commit and begin": ("COMMIT", "BEGIN"),
    "commit and chain": ("COMMIT AND CHAIN",),
    "rollback": ("ROLLBACK",),
    "rollback and begin": ("ROLLBACK", "BEGIN"),
    "rollback and chain": ("ROLLBACK AND CHAIN",),
    "commit in a string of its own": ("select 1; COMMIT; BEGIN",),
    "commit and a savepoint of the same name": ("COMMIT", "BEGIN", "SAVEPOINT s_{claim_id}"),
    "prepare transaction": ("PREPARE TRANSACTION 'gone'",),
}
COMMITS = ("commit", "commit and begin", "commit and chain")


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
@pytest.mark.parametrize("ending", RAW_ENDINGS)
async def test_a_transaction_that_was_ended_behind_the_tx_is_never_stamped(
    process: StartProcess, database: Database, ending: str, redelivered: bool
) -> None:
    one = await process()
    committed = sum("COMMIT" in text for text in RAW_ENDINGS[ending])

    async def end(attempt: Attempt, tx: Tx) -> None:
        for text in RAW_ENDINGS[ending]:
            try:
                await raw(tx).execute(text.format(claim_id=attempt.claim_id.hex))
            except asyncpg.ObjectNotInPrerequisiteStateError:
                assert ending == "prepare transaction"  # not configured, and the transaction is gone for that

    outcome = await one.attempt(message(), Handler(end), redelivered=redelivered)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="inbox.errors.TxBroken")
    # What the handler itself committed stays committed: nothing can undo that.
    await charged(database, "inbox.errors.TxBroken", effects=min(committed, 1))
    assert "ended the attempt's transaction" in await database.fetchval("select error_text from inbox.attempt")
    await database.execute("delete from ledger")
    await done_next_time(one)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("ending", ["commit and begin", "rollback and begin"])
async def test_a_statement_after_the_transaction_was_ended_behind_the_tx_is_undone(
    process: StartProcess, database: Database, ending: str
) -> None:
    one = await process()

    async def end(attempt: Attempt, tx: Tx) -> None:
        for text in RAW_ENDINGS[ending]:
            await raw(tx).execute(text)
        await tx.execute(INSERT, "after", attempt.number, "handler")

    assert isinstance(await one.attempt(message(), Handler(end)), Waiting)
    assert await database.fetchval("select count(*) from ledger where message_id = 'after'") == 0
    await charged(database, "inbox.errors.TxBroken", effects=int(ending in COMMITS))


async def test_a_tx_whose_transaction_is_gone_says_so_at_its_next_use(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def end(_: Attempt, tx: Tx) -> None:
        await raw(tx).execute("ROLLBACK")
        with pytest.raises(TxBroken, match="ended the attempt's transaction"):
            await tx.fetch("select 1")
        with pytest.raises(TxBroken):
            await tx.execute(INSERT, "m-1", 1, "outside of any transaction")

    await one.attempt(message(), Handler(end))
    await charged(database, "inbox.errors.TxBroken")


@pytest.mark.parametrize("ending", [ValueError("no"), asyncio.CancelledError()], ids=["raises", "cancels"])
async def test_a_failure_after_a_raw_commit_is_recorded_under_the_key(
    process: StartProcess, database: Database, ending: BaseException
) -> None:
    one = await process()

    async def end(_: Attempt, tx: Tx) -> None:
        await raw(tx).execute("COMMIT")
        raise ending

    await one.attempt(message(), Handler(end))
    await charged(database, type(ending).__qualname__ if isinstance(ending, ValueError) else CANCELLED, effects=1)


CANCELLED = "asyncio.exceptions.CancelledError"
REFUSED_BY_TX = [
    "commit",
    "COMMIT AND CHAIN",
    "end",
    "rollback",
    "abort",
    "begin",
    "start transaction",
    "savepoint s",
    "release s",
    "prepare transaction 'x'",
    ";/* a /* b */ */ --c\n commit",
    "--c\rcommit",
    "set session characteristics as transaction read only",
    "discard all",
    "listen c",
]


@pytest.mark.parametrize("statement", REFUSED_BY_TX)
async def test_the_tx_refuses_to_end_its_transaction_and_the_handler_may_go_on(
    process: StartProcess, database: Database, statement: str
) -> None:
    one = await process()

    async def end(_: Attempt, tx: Tx) -> None:
        for call in (tx.execute, tx.fetch, tx.fetchrow, tx.fetchval):
            with pytest.raises(TxRefused):
                await call(statement)
        with pytest.raises(TxRefused):
            await tx.executemany(statement, [()])
        with pytest.raises(TxRefused):
            await anext(tx.cursor(statement))

    assert await one.attempt(message(), Handler(end)) == Processed(1)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize(
    "statement",
    [
        "do $$ begin commit; end $$",
        "do $$ begin rollback; end $$",
        "call commits()",
        "do $$ begin execute 'commit'; end $$",
        "select 1; commit",
        "select 1; rollback; begin",
    ],
)
async def test_a_commit_hidden_from_the_tx_is_refused_by_the_server(
    process: StartProcess, database: Database, statement: str
) -> None:
    one = await process()
    await database.execute("create procedure commits() language plpgsql as $$ begin commit; end $$")

    async def end(_: Attempt, tx: Tx) -> None:
        await tx.execute(statement)

    assert isinstance(await one.attempt(message(), Handler(end)), Waiting)
    found = await standing(database, message())
    assert found == Standing(receipts=0, effects=0, state="waiting", attempts=(("failed", True),))
    assert found.errors[0] is not None
    assert found.errors[0].startswith("asyncpg.")
    await done_next_time(one)


async def test_without_arguments_two_statements_in_one_string_are_refused(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def two(_: Attempt, tx: Tx) -> None:
        for call in (tx.execute, tx.fetch, tx.fetchrow, tx.fetchval):
            with pytest.raises(asyncpg.PostgresSyntaxError, match="multiple commands"):
                async with tx.savepoint():
                    await call("insert into ledger (message_id, attempt, writer) values ('m-1', 1, 'x'); select 1")

    assert await one.attempt(message(), Handler(two)) == Processed(1)
    assert await standing(database, message()) == PROCESSED


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
    await charged(database, "inbox.errors.TxBroken")
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
    await charged(database, "inbox.errors.TxBroken")
    await done_next_time(one)


async def test_a_statement_with_a_deadline_of_its_own_fails_the_attempt_when_it_is_missed(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def slow(_: Attempt, tx: Tx) -> None:
        await tx.execute("select pg_sleep(60)", timeout=0.05)

    assert await one.attempt(message(), Handler(slow)) == Waiting(1, 0.0, charged=True, error_class="TimeoutError")
    await charged(database, "TimeoutError")
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
    await charged(database, error_class)
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
    await charged(database, error_class)


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
    await charged(database, "inbox.errors.TxBroken")
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
    await charged(database, "inbox.errors.TxBroken")
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


# Time.


async def sleep_in_sql(_: Attempt, tx: Tx) -> None:
    await tx.execute("select pg_sleep(60)")


async def sleep_outside(_: Attempt, tx: Tx) -> None:
    await asyncio.Event().wait()


async def swallow_the_cancellation(_: Attempt, tx: Tx) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def swallow_the_cancellation_of_a_statement(_: Attempt, tx: Tx) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await tx.execute("select pg_sleep(60)")


async def work_on_after_the_cancellation(attempt: Attempt, tx: Tx) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await tx.execute(INSERT, "m-1", attempt.number, "late")


async def sleep_in_a_block(_: Attempt, tx: Tx) -> None:
    async with tx.savepoint():
        await tx.execute("select pg_sleep(60)")


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
@pytest.mark.parametrize(
    "step",
    [
        sleep_in_sql,
        sleep_outside,
        swallow_the_cancellation,
        swallow_the_cancellation_of_a_statement,
        work_on_after_the_cancellation,
        sleep_in_a_block,
    ],
)
async def test_a_handler_whose_time_is_up_is_recorded_in_place_however_it_ends(
    process: StartProcess, database: Database, step: Any, redelivered: bool
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(step), BRIEF, redelivered=redelivered)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="TimeoutError")
    await charged(database, "TimeoutError", outcome="timed_out")
    assert "more than 0.2 s" in await database.fetchval("select error_text from inbox.attempt")
    assert one.pool.statistics().terminated == 0
    await done_next_time(one)


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
async def test_a_handler_that_cannot_be_cancelled_is_abandoned_and_recorded_on_another_session(
    process: StartProcess, database: Database, monkeypatch: pytest.MonkeyPatch, redelivered: bool
) -> None:
    monkeypatch.setattr(running, "CANCEL_WAIT_S", 0.1)
    one, over, answers = await process(), asyncio.Event(), list[BaseException]()

    async def cling(_: Attempt, tx: Tx) -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()
        try:
            await tx.execute(INSERT, "m-1", 1, "late")
        except TxDead as error:
            answers.append(error)

    outcome = await one.attempt(message(), Handler(cling), BRIEF, redelivered=redelivered)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="TimeoutError")
    await charged(database, "TimeoutError", outcome="timed_out")
    assert one.pool.statistics().terminated == 1
    assert one.inbox.runner.abandoned == 1
    await done_next_time(one)
    over.set()
    await eventually(lambda: one.inbox.runner.abandoned == 0, what="the end of an abandoned handler")
    assert [type(answer) for answer in answers] == [TxDead]
    assert await standing(database, message()) == PROCESSED


async def test_a_handler_that_blocks_in_a_thread_is_not_waited_for_and_its_thread_cannot_write_any_more(
    process: StartProcess, database: Database
) -> None:
    one, go = await process(), threading.Event()
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def block(_: Attempt, tx: Tx) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            go.wait(30)
            writing = asyncio.run_coroutine_threadsafe(tx.execute(INSERT, "m-1", 1, "late"), loop)
            loop.call_soon_threadsafe(ended.set_result, writing.exception(10))

        await asyncio.to_thread(work)

    outcome = await one.attempt(message(), Handler(block), BRIEF)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="TimeoutError")
    await charged(database, "TimeoutError", outcome="timed_out")
    go.set()
    assert type(await ended) is TxDead
    assert (await standing(database, message())).effects == 0


async def test_a_handler_that_was_done_before_anybody_saw_that_its_time_was_up_is_done(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def block_the_loop(_: Attempt, tx: Tx) -> None:
        time.sleep(0.3)  # noqa: ASYNC251  # a handler that computes

    assert await one.attempt(message(), Handler(block_the_loop), BRIEF) == Processed(1)
    assert await standing(database, message()) == PROCESSED


async def test_the_servers_own_limit_for_a_statement_is_the_handlers_time_too(
    process: StartProcess, database: Database
) -> None:
    session = SessionSettings(statement_timeout_s=0.1, idle_in_transaction_timeout_s=20)
    one = await process(session=session)
    error_class = "asyncpg.exceptions.QueryCanceledError"
    assert await one.attempt(message(), Handler(sleep_in_sql)) == Waiting(1, 0.0, charged=True, error_class=error_class)
    await charged(database, error_class, outcome="timed_out")


# Stopping.


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
@pytest.mark.parametrize("direction", list(Direction))
async def test_giving_up_while_commit_is_under_way_does_not_undo_it(
    process: StartProcess, database: Database, relay_before: RelayBefore, direction: Direction, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def arm(_: Attempt, tx: Tx) -> None:
        committing.append(relay.hold_on(b"COMMIT", direction))

    committing: list[Rule] = []
    handler = Handler(arm)
    attempt = asyncio.create_task(one.attempt(message(), handler, redelivered=redelivered))
    await eventually(lambda: committing and committing[0].reached.is_set(), what="COMMIT on its way")
    one.inbox.runner.give_up()
    committing[0].release()
    assert await attempt == Processed(1)
    assert await standing(database, message()) == PROCESSED


async def test_giving_up_at_the_moment_when_a_handler_returns_does_not_undo_it(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def last_step(_: Attempt, tx: Tx) -> None:
        # Runs when this task is done and before anybody has been told.
        asyncio.get_running_loop().call_soon(one.inbox.runner.give_up)

    assert await one.attempt(message(), Handler(last_step)) == Processed(1)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
async def test_giving_up_a_handler_rolls_back_and_charges_nobody(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, started = await process(), asyncio.Event()

    async def start(_: Attempt, tx: Tx) -> None:
        started.set()
        await tx.execute("select pg_sleep(60)")

    attempt = asyncio.create_task(one.attempt(message(), Handler(start), redelivered=redelivered))
    await started.wait()
    one.inbox.runner.give_up()
    assert await attempt == Stopped()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    assert await one.attempt(message(), Handler(), redelivered=True) == Stopped()
    assert (await standing(database, message())).effects == 0


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
async def test_a_lane_that_is_cancelled_during_commit_sees_it_through(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))
    committing: list[Rule] = []

    async def arm(_: Attempt, tx: Tx) -> None:
        committing.append(relay.hold_on(b"COMMIT", Direction.TO_SERVER))

    attempt = asyncio.create_task(one.attempt(message(), Handler(arm), redelivered=redelivered))
    await eventually(lambda: committing and committing[0].reached.is_set(), what="COMMIT on its way")
    attempt.cancel()
    await asyncio.sleep(0)
    committing[0].release()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert await standing(database, message()) == PROCESSED
    await one.pay()


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
async def test_a_lane_that_is_cancelled_while_its_handler_runs_leaves_nothing_behind(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, started = await process(), asyncio.Event()

    async def start(_: Attempt, tx: Tx) -> None:
        started.set()
        await asyncio.Event().wait()

    attempt = asyncio.create_task(one.attempt(message(), Handler(start), redelivered=redelivered))
    await started.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await one.pay()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    assert one.pool.statistics().in_use == 0


# Nested blocks.


async def test_a_nested_block_undoes_what_failed_inside_and_keeps_the_rest(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def nest(attempt: Attempt, tx: Tx) -> None:
        with pytest.raises(asyncpg.NotNullViolationError):
            async with tx.savepoint():
                await tx.execute(INSERT, "inside", 1, "handler")
                await fail_in_sql(attempt, tx)
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


async def test_a_handler_cannot_make_its_commit_less_durable(process: StartProcess, database: Database) -> None:
    one = await process()
    await watch_durability(database)

    async def weaken(_: Attempt, tx: Tx) -> None:
        await tx.execute("set local synchronous_commit = off")
        assert await tx.fetchval("show synchronous_commit") == "off"

    assert await one.attempt(message(), Handler(weaken)) == Processed(1)
    assert await one.attempt(message("m-2"), Handler(weaken, message_id="m-2"), redelivered=True) == Processed(1)
    assert await durability(database) == ["on", "on"]


async def test_a_session_that_got_less_durable_since_the_start_commits_durably_all_the_same(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await watch_durability(database)
    for setting in ("off", "local", "remote_write", "remote_apply"):
        await database.execute(f"alter database {database.name} set synchronous_commit = {setting}")
        await one.end_sessions()
        assert await one.attempt(message(setting), Handler(message_id=setting)) == Processed(1)
    assert await durability(database) == ["on", "on", "remote_write", "remote_apply"]


async def test_a_transaction_that_has_said_something_about_a_message_commits_durably(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await one.attempt(message(), Handler(ValueError("no")))
    session = await database.connect(synchronous_commit="off")
    key, claim_id = message().key, uuid4()
    identity = ("billing", "/shop", "m-1", "order.placed", b"", b"", "shop", "order.placed", None)
    for statement, arguments in (
        (query("start_attempt"), (key, claim_id, uuid4(), False, *identity, 3, 3, [0.0], 0.0)),
        (
            query("record_outcome"),
            (key, claim_id, uuid4(), False, False, *identity, 0, "failed", "E", "no", None, None, 3, 3, [0.0]),
        ),
        (query("settle_debt"), (key, claim_id, [0.0])),
        ("call inbox.stamp($1)", (key,)),
    ):
        before, now = await setting_of(session, statement, arguments)
        assert (before, now) == ("off", "on"), statement


async def setting_of(session: Any, statement: str, arguments: tuple[object, ...]) -> tuple[str, str]:
    """Return `synchronous_commit` before a statement and after it, in its transaction, which is committed."""
    async with session.transaction():
        before = await session.fetchval("show synchronous_commit")
        await session.fetch(statement, *arguments)
        return before, await session.fetchval("show synchronous_commit")


async def watch_durability(database: Database) -> None:
    """Note with which `synchronous_commit` receipts are written."""
    await database.execute(
        "create table durability (entry integer generated always as identity, setting text);"
        "create function note() returns trigger language plpgsql as $$ begin "
        "insert into durability (setting) values (current_setting('synchronous_commit')); return null; end $$;"
        "create trigger note after insert on inbox.receipt for each row execute function note()"
    )


async def durability(database: Database) -> list[str]:
    return [row["setting"] for row in await database.fetch("select setting from durability order by entry")]


async def test_a_failure_is_recorded_durably_whatever_the_handler_set(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def weaken(_: Attempt, tx: Tx) -> None:
        await tx.execute("set local synchronous_commit = off")
        await tx.execute("set local transaction_read_only = on")
        raise ValueError("no")

    assert await one.attempt(message(), Handler(weaken)) == Waiting(1, 0.0, charged=True, error_class="ValueError")
    await charged(database, "ValueError")
