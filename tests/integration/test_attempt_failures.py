"""Failures are on record before the key is free, waited for, and counted to the end of the budget."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from inbox import Attempt, Policy, Reject, Tx
from inbox.outcomes import (
    Absorbed,
    Contended,
    Early,
    Processed,
    Waiting,
)
from inbox.states import State
from pools import SessionSettings
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    ended,
    key_is_locked,
    message,
    standing,
)
from tests.support.relay import RelayBefore

PACED = Policy(max_attempts=3, max_aborts=5, pacing_s=(5.0, 60.0), handler_timeout_s=10.0)


@HOT_AND_COUNTED
async def test_a_failure_is_on_record_before_the_key_is_free(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))
    undoing = relay.hold_on(b"ROLLBACK TO", Direction.TO_SERVER)
    attempt = asyncio.create_task(one.attempt(message(), Handler(ValueError("no")), redelivered=redelivered))
    await undoing.reached.wait()
    assert await key_is_locked(database, message())
    committing = relay.hold_on(b"COMMIT", Direction.TO_SERVER)
    undoing.release()
    await committing.reached.wait()
    # The record is written and nobody sees it; nor can anybody take the key.
    assert await key_is_locked(database, message())
    assert (await standing(database, message())).attempts == ((("started", True),) if redelivered else ())
    assert await (await process("other")).attempt(message(), Handler(), redelivered=True) == Contended()
    committing.release()
    assert await attempt == Waiting(1, 0.0, charged=True, error_class="ValueError")
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("failed", True),))


@pytest.mark.parametrize("max_attempts", [1, 2, 4])
@pytest.mark.parametrize("redelivered", [False, True], ids=["first is hot", "first is counted"])
async def test_a_handler_that_always_fails_is_called_exactly_as_often_as_the_budget_says(
    process: StartProcess, database: Database, max_attempts: int, redelivered: bool
) -> None:
    one = await process()
    policy = Policy(max_attempts=max_attempts, pacing_s=(0.0,), handler_timeout_s=10.0)
    handler = Handler(ValueError("no"))
    outcomes = [await one.attempt(message(), handler, policy, redelivered=redelivered)]
    while isinstance(outcomes[-1], Waiting):
        outcomes.append(await one.attempt(message(), handler, policy, redelivered=True))
    assert ended(outcomes[-1]) == (State.EXHAUSTED, max_attempts, "attempts")
    assert len(outcomes) == len(handler.calls) == max_attempts
    found = await standing(database, message())
    assert found == Standing(0, 0, "exhausted", (("failed", True),) * max_attempts, reason="attempts")
    row = await database.fetchrow("select dead_letter_needed, finished_at, due_at, claim_id from inbox.message")
    assert row is not None
    assert (row["dead_letter_needed"], row["due_at"], row["claim_id"]) == (True, None, None)
    assert await one.attempt(message(), handler, policy) == Absorbed(State.EXHAUSTED)
    assert len(handler.calls) == max_attempts


async def test_a_budget_that_was_lowered_ends_the_message_at_its_next_copy(
    process: StartProcess, database: Database
) -> None:
    one, handler = await process(), Handler()
    for _ in range(2):
        await one.attempt(message(), Handler(ValueError("no")))
    outcome = await one.attempt(message(), handler, Policy(max_attempts=2, pacing_s=(0.0,)))
    assert ended(outcome) == (State.EXHAUSTED, 2, "attempts")
    assert handler.calls == []


@HOT_AND_COUNTED
async def test_a_rejected_message_ends_at_once_with_its_reason(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(Reject("no such customer")), redelivered=redelivered)
    assert ended(outcome) == (State.REJECTED, 1, "no such customer")
    assert await standing(database, message()) == Standing(
        0, 0, "rejected", (("rejected", False),), reason="no such customer"
    )


async def test_a_copy_that_comes_early_is_sent_away_for_the_remainder_and_burns_nothing(
    process: StartProcess, database: Database
) -> None:
    one, handler = await process(), Handler()
    assert await one.attempt(message(), Handler(ValueError("no")), PACED) == Waiting(
        1, 5.0, charged=True, error_class="ValueError"
    )
    for redelivered in (False, True):
        early = await one.attempt(message(), handler, PACED, redelivered=redelivered)
        assert isinstance(early, Early)
        assert 4 < early.remaining_s <= 5
    assert handler.calls == []
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("failed", True),))


async def test_each_pause_is_the_next_of_the_pacing_and_the_last_one_repeats(
    process: StartProcess, database: Database
) -> None:
    one, delays = await process(), list[float]()
    policy = Policy(max_attempts=5, pacing_s=(0.0, 5.0, 30.0), handler_timeout_s=10.0)
    for _ in range(4):
        outcome = await one.attempt(message(), Handler(ValueError("no")), policy)
        assert isinstance(outcome, Waiting)
        delays.append(outcome.delay_s)
        due = await database.fetchval("select extract(epoch from due_at - changed_at)::float8 from inbox.message")
        assert due == pytest.approx(outcome.delay_s)
        await database.execute("update inbox.message set due_at = inbox.clock()")
    assert delays == [0.0, 5.0, 30.0, 30.0]


@pytest.mark.parametrize(("early_by_ms", "runs"), [(40, True), (500, False)])
async def test_a_copy_that_comes_a_few_milliseconds_early_is_on_time(
    process: StartProcess, database: Database, early_by_ms: int, runs: bool
) -> None:
    one = await process()
    await one.attempt(message(), Handler(ValueError("no")), PACED)
    # A clock that stands still, so that the margin is what the test says.
    await database.execute(
        "create table stopped as select due_at - make_interval(secs => $1) as at from inbox.message",
        early_by_ms / 1000,
    )
    await database.execute(
        "create or replace function inbox.clock() returns timestamptz language plpgsql as "
        "$$ begin return (select at from stopped); end $$"
    )
    outcome = await one.attempt(message(), Handler(), PACED)
    assert outcome == (Processed(2) if runs else Early(pytest.approx(early_by_ms / 1000)))


@HOT_AND_COUNTED
async def test_contention_runs_the_handler_again_under_the_same_claim(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def serialization_failure(_: Attempt, tx: Tx) -> None:
        await tx.execute("do $$ begin raise exception using errcode = '40001'; end $$")

    async def succeed(_: Attempt, tx: Tx) -> None:
        pass

    handler = Handler(serialization_failure, serialization_failure, succeed)
    undoing = relay.hold_on(b"ROLLBACK TO", Direction.TO_SERVER)
    attempt = asyncio.create_task(one.attempt(message(), handler, redelivered=redelivered))
    await undoing.reached.wait()
    assert await key_is_locked(database, message())
    undoing.release()
    assert await attempt == Processed(1)
    assert len(handler.calls) == 3
    assert len({attempt.claim_id for attempt in handler.calls}) == 1
    assert await standing(database, message()) == PROCESSED


async def test_contention_that_the_handler_swallowed_is_still_nobodys_fault(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def swallow(_: Attempt, tx: Tx) -> None:
        for _again in range(2):  # the second statement only learns that the transaction is aborted
            with pytest.raises(asyncpg.PostgresError):
                await tx.execute("do $$ begin raise exception using errcode = '40P01'; end $$")

    async def go_on(_: Attempt, tx: Tx) -> None:
        with pytest.raises(asyncpg.DeadlockDetectedError):
            await tx.execute("do $$ begin raise exception using errcode = '40P01'; end $$")
        await tx.execute("select 1")

    async def succeed(_: Attempt, tx: Tx) -> None:
        pass

    handler = Handler(swallow, go_on, succeed)
    assert await one.attempt(message(), handler) == Processed(1)
    assert len(handler.calls) == 3
    assert await standing(database, message()) == PROCESSED


async def test_a_lock_that_is_never_free_is_waited_for_again_and_then_paced_and_charges_nobody(
    process: StartProcess, database: Database
) -> None:
    session = SessionSettings(statement_timeout_s=10, idle_in_transaction_timeout_s=20, lock_timeout_s=0.05)
    one = await process(session=session)
    await database.execute("create table account (id integer primary key); insert into account values (1)")
    holder = await database.connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("select from account for update")

    async def wait(_: Attempt, tx: Tx) -> None:
        await tx.execute("select from account for update")

    handler = Handler(wait)
    assert await one.attempt(message(), handler, PACED) == Waiting(
        1, 5.0, charged=False, error_class="asyncpg.exceptions.LockNotAvailableError"
    )
    assert len(handler.calls) == 1 + PACED.max_reruns
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))
    await transaction.rollback()
    await database.execute("update inbox.message set due_at = inbox.clock()")
    assert await one.attempt(message(), Handler(wait), PACED) == Processed(2)
