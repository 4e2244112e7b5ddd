"""What an attempt leaves behind: receipts, rows and effects after every way in which it can go."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import asyncpg
import pytest

from inbox import Attempt, Message, Outcome, Policy, Reject, Retry, Tx, blocked
from inbox.outcomes import (
    Absorbed,
    Contended,
    Duplicate,
    Early,
    Ended,
    Processed,
    Unavailable,
    Unknown,
    Waiting,
)
from inbox.states import State
from pools import SessionSettings
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import (
    PROCESSED,
    Handler,
    Process,
    Standing,
    StartProcess,
    ended,
    key_is_locked,
    message,
    standing,
)
from tests.support.relay import Direction, RelayBefore

PACED = Policy(max_attempts=3, max_aborts=5, pacing_s=(5.0, 60.0), handler_timeout_s=10.0)
HOT_AND_COUNTED = pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])


# First deliveries, duplicates, copies.


@HOT_AND_COUNTED
async def test_a_delivery_has_one_effect_and_one_receipt_and_leaves_no_row(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, handler = await process(), Handler()
    assert await one.attempt(message(), handler, redelivered=redelivered) == Processed(1)
    assert await standing(database, message()) == PROCESSED
    assert [(attempt.number, attempt.generation) for attempt in handler.calls] == [(1, 1)]


@HOT_AND_COUNTED
async def test_a_duplicate_is_found_by_its_receipt_and_its_handler_is_not_called(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, other, handler = await process("one"), await process("other"), Handler()
    await one.attempt(message(), Handler())
    for copy_of in (one, other):
        assert await copy_of.attempt(message(), handler, redelivered=redelivered) == Duplicate()
    assert handler.calls == []
    assert await standing(database, message()) == PROCESSED


@HOT_AND_COUNTED
async def test_a_duplicate_takes_a_left_over_row_away(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()
    await one.attempt(message(), Handler(ValueError("no")))
    await database.execute("insert into inbox.receipt (key) values ($1)", message().key)
    assert await one.attempt(message(), Handler(), redelivered=redelivered) == Duplicate()
    assert await standing(database, message()) == Standing(receipts=1, effects=0)


async def test_every_attempt_has_a_claim_of_its_own(process: StartProcess, database: Database) -> None:
    one = await process()
    handler = Handler(ValueError("no"), ValueError("no"), ValueError("no"))
    for _ in range(3):
        await one.attempt(message(), handler)
    assert [attempt.number for attempt in handler.calls] == [1, 2, 3]
    claims = await database.fetch("select claim_id from inbox.attempt order by number")
    assert [row["claim_id"] for row in claims] == [attempt.claim_id for attempt in handler.calls]
    assert len({attempt.claim_id for attempt in handler.calls}) == 3


@HOT_AND_COUNTED
@pytest.mark.parametrize("in_one_process", [True, False], ids=["one process", "two processes"])
async def test_copies_that_come_while_one_runs_start_nothing_and_hold_nothing(
    process: StartProcess, database: Database, in_one_process: bool, redelivered: bool
) -> None:
    winner = await process("winner")
    loser = winner if in_one_process else await process("loser")
    works, may_end = asyncio.Event(), asyncio.Event()

    async def work(_: Attempt, tx: Tx) -> None:
        works.set()
        await may_end.wait()

    first = asyncio.create_task(winner.attempt(message(), Handler(work), redelivered=redelivered))
    await works.wait()
    copies = Handler()
    lost = await asyncio.gather(
        *(loser.attempt(message(), copies, redelivered=again) for again in (False, True, False, True))
    )
    assert lost == [Contended()] * 4
    sessions = await database.sessions(loser.application_name)
    in_transaction = [row["state"] for row in sessions if row["state"] != "idle"]
    # The counted winner's session is idle in its transaction too, and only the winner's.
    assert in_transaction == (["idle in transaction"] if in_one_process else [])
    assert loser.pool.statistics().in_use == (1 if in_one_process else 0)
    may_end.set()
    assert await first == Processed(1)
    assert copies.calls == []
    assert await loser.attempt(message(), copies) == Duplicate()
    assert await standing(database, message()) == PROCESSED


async def test_a_copy_that_was_contended_runs_when_the_first_one_has_failed(
    process: StartProcess, database: Database
) -> None:
    one, works, may_end = await process(), asyncio.Event(), asyncio.Event()

    async def fail(_: Attempt, tx: Tx) -> None:
        works.set()
        await may_end.wait()
        raise ValueError("no")

    first = asyncio.create_task(one.attempt(message(), Handler(fail)))
    await works.wait()
    assert await one.attempt(message(), Handler()) == Contended()
    may_end.set()
    assert isinstance(await first, Waiting)
    assert await one.attempt(message(), Handler()) == Processed(2)
    assert await standing(database, message()) == PROCESSED


async def test_many_copies_at_once_on_two_processes_have_one_effect(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    handlers = [Handler() for _ in range(8)]
    outcomes = await asyncio.gather(
        *(
            (one, other)[number % 2].attempt(message(), handler, redelivered=number % 3 == 0)
            for number, handler in enumerate(handlers)
        )
    )
    assert sum(isinstance(outcome, Processed) for outcome in outcomes) == 1
    assert all(isinstance(outcome, (Processed, Contended, Duplicate)) for outcome in outcomes), outcomes
    assert sum(len(handler.calls) for handler in handlers) == 1
    assert await standing(database, message()) == PROCESSED


async def test_each_consumer_remembers_a_message_for_itself(process: StartProcess, database: Database) -> None:
    one = await process()
    assert await one.attempt(message(consumer="billing"), Handler()) == Processed(1)
    assert await one.attempt(message(consumer="shipping"), Handler()) == Processed(1)
    assert await one.attempt(message(source="/other-shop"), Handler()) == Processed(1)
    assert await one.attempt(message(exchange="elsewhere", routing_key="moved"), Handler()) == Duplicate()
    assert await database.fetchval("select count(*) from ledger") == 3


# Failures and the budget.


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


# Whatever a handler can raise.


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Abrupt(BaseException):
    """What some frameworks raise to get past `except Exception`."""


class ForeignReject(Reject):
    def __init__(self, order: int) -> None:
        self.order = order


class ForeignRetry(Retry):
    def __init__(self, order: int) -> None:
        self.order = order


@HOT_AND_COUNTED
@pytest.mark.parametrize(
    "error",
    [
        Mute(),
        SystemExit(3),
        Abrupt("out"),
        BaseExceptionGroup("many", [Abrupt("out"), ValueError("no")]),
        asyncio.CancelledError("from somewhere inside"),
        StopAsyncIteration(),
        TimeoutError(),
        ConnectionResetError("of a web service"),
        ForeignRetry(1),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_is_a_charged_failure_and_the_process_lives(
    process: StartProcess, database: Database, error: BaseException, redelivered: bool
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(error), redelivered=redelivered)
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("failed", True),))
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("answer", [ForeignReject(1), Reject(17), Reject(None)], ids=["subclass", "number", "none"])  # type: ignore[arg-type]
async def test_a_rejection_without_a_proper_reason_is_a_rejection(
    process: StartProcess, database: Database, answer: Reject
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(answer))
    assert isinstance(outcome, Ended)
    assert outcome.state is State.REJECTED
    assert (await standing(database, message())).state == "rejected"


async def test_a_wait_beyond_all_measure_is_a_failure_that_is_recorded(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def wait_for_ever(_: Attempt, tx: Tx) -> None:
        raise Retry(after=1e15)

    outcome = await one.attempt(message(), Handler(wait_for_ever))
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert (await standing(database, message())).attempts == (("failed", True),)


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 10_000, "\U0001f4e6" * 255, ""])
@pytest.mark.parametrize("field", ["source", "message_id", "type", "exchange", "routing_key", "traceparent"])
async def test_a_message_with_any_text_in_any_field_can_be_recorded(
    process: StartProcess, database: Database, field: str, text: str
) -> None:
    one = await process()
    odd = message(**{"key": message().key, field: text})
    for redelivered in (False, True):
        outcome = await one.attempt(odd, Handler(ValueError(text)), redelivered=redelivered)
        assert isinstance(outcome, Waiting), outcome
        assert outcome.charged
    stored = await database.fetchval(f"select {field} from inbox.message")
    assert len(stored) <= 2_000
    assert await one.attempt(odd, Handler(), redelivered=True) == Processed(3)


@HOT_AND_COUNTED
@pytest.mark.parametrize("size", [0, 5_000_000])
async def test_a_body_of_any_size_is_kept_as_it_came(
    process: StartProcess, database: Database, size: int, redelivered: bool
) -> None:
    one = await process()
    body = bytes(number % 251 for number in range(1000)) * (size // 1000)
    large = message(body=body)
    assert isinstance(await one.attempt(large, Handler(ValueError("no")), redelivered=redelivered), Waiting)
    assert await database.fetchval("select body from inbox.message") == body
    assert await one.attempt(large, Handler(), redelivered=True) == Processed(2)


# Lost sessions and unknown outcomes.


async def test_a_first_delivery_whose_session_dies_leaves_nothing_and_charges_nobody(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def lose(_: Attempt, tx: Tx) -> None:
        await one.end_sessions()

    for _ in range(2):
        assert isinstance(await one.attempt(message(), Handler(lose)), Unknown)
    assert await standing(database, message()) == Standing(0, 0)
    assert one.debts.count == 0
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(1)


async def test_a_session_that_died_idle_costs_a_claim_no_more_than_another_session(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url), lanes=1, headroom=0)
    for number, redelivered in enumerate((False, True)):
        assert await one.attempt(message(f"before {number}"), Handler()) == Processed(1)
        # Cut when the claim is on its way: this end cannot have known before.
        cut = relay.cut_on(b"inbox.hold" if redelivered else b"inbox.lock", Direction.TO_SERVER)
        handler = Handler(message_id=f"after {number}")
        assert await one.attempt(message(f"after {number}"), handler, redelivered=redelivered) == Processed(1)
        assert cut.reached.is_set()
        assert await standing(database, message(f"after {number}")) == PROCESSED


@HOT_AND_COUNTED
async def test_a_commit_that_the_server_never_saw_is_unknown_and_the_redelivery_finds_nothing_done(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def arm(_: Attempt, tx: Tx) -> None:
        relay.cut_on(b"RELEASE SAVEPOINT", Direction.TO_SERVER)

    assert isinstance(await one.attempt(message(), Handler(arm), redelivered=redelivered), Unknown)
    await one.pay()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    assert isinstance(await one.attempt(message(), Handler(), redelivered=True), Processed)
    assert await standing(database, message()) == PROCESSED


@HOT_AND_COUNTED
async def test_a_commit_whose_answer_was_lost_is_unknown_and_the_redelivery_finds_it_done(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one, handler = await process(url=relay.url(database.url)), Handler()

    async def arm(_: Attempt, tx: Tx) -> None:
        relay.cut_on(b"COMMIT", Direction.TO_CLIENT)

    assert isinstance(await one.attempt(message(), Handler(arm), redelivered=redelivered), Unknown)
    await one.pay()
    assert await standing(database, message()) == PROCESSED
    assert await one.attempt(message(), handler, redelivered=True) == Duplicate()
    assert handler.calls == []


@HOT_AND_COUNTED
@pytest.mark.parametrize("answered", [False, True], ids=["never seen", "answer lost"])
async def test_a_failure_whose_record_is_unknown_is_charged_once_or_not_at_all(
    process: StartProcess, database: Database, relay_before: RelayBefore, answered: bool, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def arm(_: Attempt, tx: Tx) -> None:
        relay.cut_on(b"COMMIT", Direction.TO_CLIENT if answered else Direction.TO_SERVER)
        raise ValueError("no")

    assert isinstance(await one.attempt(message(), Handler(arm), redelivered=redelivered), Unknown)
    await one.pay()
    found = await standing(database, message())
    if answered:
        assert found == Standing(0, 0, "waiting", (("failed", True),))
    elif redelivered:
        assert found == Standing(0, 0, "waiting", (("aborted", False),))
    else:
        assert found == Standing(0, 0)
    assert isinstance(await one.attempt(message(), Handler(), redelivered=True), Processed)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("answered", [False, True], ids=["never seen", "answer lost"])
async def test_a_counted_start_whose_answer_is_unknown_is_owed_and_charges_nobody(
    process: StartProcess, database: Database, relay_before: RelayBefore, answered: bool
) -> None:
    relay = await relay_before(database.url)
    one, handler = await process(url=relay.url(database.url)), Handler()
    # The column of the verdict's row, which only its description names; or the call's own text.
    if answered:
        relay.cut_on(b"attempting", Direction.TO_CLIENT)
    else:
        relay.cut_on(b"inbox.start_attempt", Direction.TO_SERVER)
    assert isinstance(await one.attempt(message(), handler, redelivered=True), Unavailable)
    assert handler.calls == []
    await one.pay()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if answered else Standing(0, 0))
    assert isinstance(await one.attempt(message(), handler, redelivered=True), Processed)
    assert await standing(database, message()) == PROCESSED


# A database that cannot serve.


@HOT_AND_COUNTED
@pytest.mark.parametrize("writes", [True, False], ids=["writes", "only reads"])
async def test_a_read_only_server_pauses_and_charges_nobody(
    process: StartProcess, database: Database, writes: bool, redelivered: bool
) -> None:
    one = await process()
    await database.execute(f"alter database {database.name} set default_transaction_read_only = on")
    await one.end_sessions()
    outcome = await one.attempt(message(), Handler(writes=writes), redelivered=redelivered)
    assert outcome == Unavailable(fault="ReadOnlySQLTransactionError (25006)", started=not redelivered)
    assert await blocked(one.pool) == "the database server is read-only"
    await database.execute(f"alter database {database.name} reset default_transaction_read_only")
    await one.pay()
    assert await standing(database, message()) == Standing(0, 0)
    await eventually(lambda: serves(one.pool), what="a pool whose sessions may write again")
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(1)


async def serves(pool: Any) -> bool:
    return await blocked(pool) is None


@HOT_AND_COUNTED
async def test_a_fault_of_the_server_that_a_handler_made_itself_makes_only_its_message_wait(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()

    async def demote(_: Attempt, tx: Tx) -> None:
        await tx.execute("set local transaction_read_only = on")
        await tx.execute("insert into ledger (message_id, attempt, writer) values ('m-1', 1, 'late')")

    outcome = await one.attempt(message(), Handler(demote), redelivered=redelivered)
    assert isinstance(outcome, Waiting)
    assert not outcome.charged
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))


@HOT_AND_COUNTED
async def test_a_server_that_cannot_be_reached_pauses_before_any_handler_is_called(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one, handler = await process(url=relay.url(database.url)), Handler()
    relay.refuse()
    outcome = await one.attempt(message(), handler, redelivered=redelivered)
    assert isinstance(outcome, Unavailable)
    assert not outcome.started
    assert handler.calls == []
    await relay.open()
    assert await one.attempt(message(), handler, redelivered=redelivered) == Processed(1)


@HOT_AND_COUNTED
async def test_without_a_partition_for_now_nothing_is_processed_and_nobody_is_charged(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()
    partitions = await database.fetch(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = 'inbox.receipt'::regclass"
    )
    for row in partitions:
        await database.execute(f"alter table inbox.receipt detach partition {row['name']}")
    outcome = await one.attempt(message(), Handler(), redelivered=redelivered)
    assert outcome == Unavailable(fault=NO_PARTITION, started=True)
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    reason = await blocked(one.pool)
    assert reason is not None
    assert "no receipt partition covers now" in reason


NO_PARTITION = "CheckViolationError (23514)"


@HOT_AND_COUNTED
async def test_a_receipt_that_is_there_although_the_key_was_free_undoes_the_effects(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()

    async def somebody_else(_: Attempt, tx: Tx) -> None:
        await database.execute("insert into inbox.receipt (key) values ($1)", message().key)

    assert await one.attempt(message(), Handler(somebody_else), redelivered=redelivered) == Duplicate()
    await one.pay()
    assert await standing(database, message()) == Standing(receipts=1, effects=0)


@pytest.mark.parametrize("ending", [None, ValueError("no"), Reject("no")], ids=["success", "failure", "rejection"])
async def test_an_attempt_that_somebody_else_has_settled_writes_nothing(
    process: StartProcess, database: Database, ending: BaseException | None
) -> None:
    one = await process()

    async def lose_it(_: Attempt, tx: Tx) -> None:
        await database.execute(
            "update inbox.message set state = 'discarded', claim_id = null, reason = 'by hand', finished_at = now()"
        )
        if ending is not None:
            raise ending

    outcome = await one.attempt(message(), Handler(lose_it), redelivered=True)
    assert isinstance(outcome, Unknown)
    assert "AttemptLost" in outcome.fault
    assert await standing(database, message()) == Standing(0, 0, "discarded", (("started", True),), reason="by hand")
    assert await one.attempt(message(), Handler(), redelivered=True) == Absorbed(State.DISCARDED)


async def test_functions_that_a_migration_replaced_cost_no_attempt(process: StartProcess, database: Database) -> None:
    one = await process(lanes=1, headroom=0)
    await one.attempt(message("before"), Handler(ValueError("no"), message_id="before"), redelivered=True)

    async def recreate() -> None:
        for row in await database.fetch(
            "select pg_get_functiondef(oid) as text, oid::regprocedure::text as name from pg_proc "
            "where pronamespace = 'inbox'::regnamespace and prokind = 'f' "
            "and proname in ('start_attempt', 'record_outcome', 'settle_debt', 'look', 'hold')"
        ):
            await database.execute(f"drop function {row['name']}; {row['text']}")

    async def migrate_and_fail(_: Attempt, tx: Tx) -> None:
        await recreate()
        raise ValueError("no")

    await recreate()
    outcome = await one.attempt(message(), Handler(migrate_and_fail), redelivered=True)
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)
    assert await standing(database, message()) == PROCESSED


# Cancelled lanes.


class CancelledAt:
    """Awaits a coroutine and cancels its task at the n-th time that it waits.

    `before`: what it waits for is cancelled with it. Otherwise that has come, and the cancellation with it.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], waits: int, *, before: bool) -> None:
        self._work = work
        self._waits = waits
        self._before = before
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        waited = 0
        proceed: Callable[[], Any] = lambda: self._work.send(None)  # noqa: E731
        while True:
            try:
                future = proceed()
            except StopIteration as done:
                return done.value
            waited += 1
            if waited == self._waits and self._before:
                self.cancelled = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield future
            except BaseException as error:
                proceed = functools.partial(self._work.throw, error)
                continue
            if waited == self._waits:
                self.cancelled = True
                proceed = functools.partial(self._work.throw, asyncio.CancelledError())
            else:
                proceed = functools.partial(self._work.send, None)


async def waits_for(cancelled: CancelledAt) -> Any:
    return await cancelled


@HOT_AND_COUNTED
@pytest.mark.parametrize("ending", [None, ValueError("no")], ids=["success", "failure"])
@pytest.mark.parametrize("before", ["nothing", "a receipt", "a row", "a terminal row"])
async def test_a_lane_that_is_cancelled_wherever_it_waits_leaves_no_session_behind_and_loses_nothing(
    process: StartProcess, database: Database, before: str, ending: BaseException | None, redelivered: bool
) -> None:
    one = await process(lanes=1, headroom=0)
    patient = Policy(max_attempts=9, pacing_s=(0.0,))
    for waits, at_once in ((waits, at_once) for waits in range(1, 100) for at_once in (True, False)):
        odd = message(f"cancelled at wait {waits}, {at_once}")
        if before == "a receipt":
            await one.attempt(odd, Handler(writes=False))
        elif before != "nothing":
            policy = patient if before == "a row" else Policy(max_attempts=1, pacing_s=(0.0,))
            await one.attempt(odd, Handler(ValueError("no"), writes=False), policy)
        handler = Handler(*[] if ending is None else [ending], message_id=odd.message_id)
        attempt = CancelledAt(one.attempt(odd, handler, patient, redelivered=redelivered), waits, before=at_once)
        await asyncio.gather(asyncio.ensure_future(waits_for(attempt)), return_exceptions=True)
        assert one.pool.statistics().in_use == 0, f"a session is lost after wait {waits}"
        await one.pay()
        settled = await processed_in_the_end(one, odd)
        if before == "a terminal row":
            assert settled == Absorbed(State.EXHAUSTED)
        else:
            found = await standing(database, odd)
            assert (found.receipts, found.state) == (1, None)
            assert found.effects == (0 if before == "a receipt" else 1)
        if not attempt.cancelled:
            assert waits > 3, "nothing was cancelled, so nothing is proven"
            return
    raise AssertionError("an attempt cannot wait that often")


async def processed_in_the_end(one: Process, odd: Message) -> Outcome:
    """Deliver copies until one is not contended by a session that still is about to end."""

    async def settled() -> Outcome | None:
        outcome = await one.attempt(odd, Handler(message_id=odd.message_id), redelivered=True)
        return None if isinstance(outcome, Contended) else outcome

    found = await eventually(settled, what="the end of a cancelled lane's session")
    assert found is not None
    return found
