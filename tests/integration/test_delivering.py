"""The delivery of exhaustion records: effects and acknowledgement commit together, and only those of the right try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from consumers.stored import envelope_of
from inbox import Attempt, Deliverer, ExhaustionRecord, Overrides, Policy, Reject, Retry, Tx, exhaustions
from inbox.exhaustions import Answer
from inbox.faults import ACTIONS
from inbox.outcomes import Processed
from inbox.running import Runner
from inbox.tries import (
    Aborted,
    Acknowledged,
    Due,
    Failed,
    Lost,
    Skipped,
    Stuck,
    TryOutcome,
    Unavailable,
    Unknown,
)
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.exhaustions import ONCE, exhausted_record, exhausted_records
from tests.support.inboxes import NO_PAUSE, Handler, Process, StartProcess, ended, message
from tests.support.ledger import INSERT, effects
from tests.support.relay import RelayBefore

Step = Callable[[ExhaustionRecord, Tx], Awaitable[None]]
THREE = NO_PAUSE


class Report:
    """An `on_exhausted` handler that writes one effect and then plays its script, as `inboxes.Handler` does."""

    def __init__(self, *steps: Step | BaseException, writes: bool = True) -> None:
        self._steps = steps
        self._writes = writes
        self.calls: list[ExhaustionRecord] = []

    async def __call__(self, record: ExhaustionRecord, tx: Tx) -> None:
        self.calls.append(record)
        if self._writes:
            await tx.execute(INSERT, record.envelope.id, record.tries, "report")
        if not self._steps:
            return
        step = self._steps[min(len(self.calls), len(self._steps)) - 1]
        if isinstance(step, BaseException):
            raise step
        await step(record, tx)


def deliverer(one: Process, runner: Runner | None = None, *, kind: type[Deliverer] = Deliverer) -> Deliverer:
    return kind(
        pool=one.pool,
        member_id=one.member.id,
        company=one.company,
        debts=one.debts,
        runner=runner or Runner(),
        read=envelope_of,
    )


async def due(one: Process) -> list[Due]:
    return await deliverer(one).due("billing", after=None, limit=100)


async def deliver(one: Process, report: Step, policy: Policy = THREE, **others: Any) -> TryOutcome:
    """Try the oldest due record once."""
    found = await due(one)
    assert found, "no record is due"
    return await deliverer(one).attempt(found[0], policy, report, **others)


async def row(database: Database) -> dict[str, Any]:
    found = await database.fetchrow("select * from inbox.exhaustion")
    assert found is not None
    return dict(found)


async def make_due(database: Database) -> None:
    await database.execute("update inbox.exhaustion set due_at = inbox.clock() - interval '1 s'")


# Success.


async def test_effects_and_acknowledgement_commit_together(process: StartProcess, database: Database) -> None:
    one, report = await process(), Report()
    await exhausted_record(one)
    assert await deliver(one, report) == Acknowledged(1)
    assert await effects(database) == {"m-1": 1}
    found = await row(database)
    assert found["acknowledged_by"] == "on_exhausted"
    assert found["acknowledged_at"] is not None
    assert await due(one) == []


async def test_the_record_says_which_message_it_was_and_why_it_ended(process: StartProcess, database: Database) -> None:
    one, report = await process(), Report()
    record_id = await exhausted_record(one)
    await deliver(one, report)
    (record,) = report.calls
    last = await database.fetchval("select claim_id from inbox.attempt")
    assert (record.id, record.key, record.generation, record.number) == (record_id, message().key, 1, 1)
    assert (record.claim_id, record.consumer, record.reason, record.tries) == (last, "billing", "attempts", 1)
    assert (record.error_class, record.error_text) == ("ValueError", "no")
    envelope = record.envelope
    assert envelope.message == message()
    assert envelope.decode(dict[str, int]) == {"order": 1}
    assert (envelope.id, envelope.exchange, envelope.routing_key) == ("m-1", "shop", "order.placed")
    assert envelope.attempt == Attempt(1, 1, last)


async def test_a_message_that_cannot_be_read_has_a_record_with_its_bytes(
    process: StartProcess, database: Database
) -> None:
    one, report = await process(), Report()
    broken = message(properties=b"\xff\xff\x00", body=b"\x00not json")
    ended(await one.attempt(broken, Handler(ValueError("no"), writes=False), ONCE))
    assert await deliver(one, report) == Acknowledged(1)
    envelope = report.calls[0].envelope
    assert (envelope.data, dict(envelope.headers)) == (b"\x00not json", {})
    with pytest.raises(Reject):
        envelope.decode(dict[str, int])


# Failures.


async def test_a_failure_undoes_the_effects_and_is_tried_again(process: StartProcess, database: Database) -> None:
    one, report = await process(), Report(ValueError("not yet"), lambda *_: asyncio.sleep(0))
    await exhausted_record(one)
    assert await deliver(one, report) == Failed(1, 0.0, "ValueError")
    assert await effects(database) == {}
    assert (await row(database))["try_error"] == "ValueError: not yet"
    assert await deliver(one, report) == Acknowledged(2)
    assert await effects(database) == {"m-1": 1}


async def test_tries_are_paced_and_bounded_and_then_wait_for_an_operator(
    process: StartProcess, database: Database
) -> None:
    one, report = await process(), Report(ValueError("no"))
    policy = Policy(max_attempts=2, pacing_s=(60.0,), handler_timeout_s=10.0)
    record_id = await exhausted_record(one)
    assert await deliver(one, report, policy) == Failed(1, 60.0, "ValueError")
    assert await due(one) == []
    await make_due(database)
    assert await deliver(one, report, policy) == Stuck(2, "ValueError")
    await make_due(database)
    assert await due(one) == []
    async with one.pool.acquire() as connection:
        assert await exhaustions.retry(connection, [record_id]) == {record_id: Answer.DONE}
    assert await deliver(one, Report(), policy) == Acknowledged(1)


async def test_retry_after_makes_a_pause_longer(process: StartProcess) -> None:
    one = await process()
    await exhausted_record(one)
    assert await deliver(one, Report(Retry(after="90s"))) == Failed(1, 90.0, "inbox.outcomes.Retry")


async def test_reject_leaves_the_record_to_an_operator_at_once(process: StartProcess, database: Database) -> None:
    one = await process()
    await exhausted_record(one)
    assert await deliver(one, Report(Reject("no such ticket system"))) == Stuck(1, "inbox.outcomes.Reject")
    assert (await row(database))["try_error"] == "rejected: no such ticket system"
    assert await effects(database) == {}


async def test_a_handler_whose_time_is_up_has_failed(process: StartProcess, database: Database) -> None:
    one = await process()
    await exhausted_record(one)

    async def dawdle(record: ExhaustionRecord, tx: Tx) -> None:
        await asyncio.sleep(60)

    policy = Policy(pacing_s=(0.0,), handler_timeout_s=0.2)
    assert await deliver(one, Report(dawdle), policy) == Failed(1, 0.0, "TimeoutError")
    assert await effects(database) == {}


async def test_a_handler_that_does_not_end_is_abandoned_and_charged(process: StartProcess, database: Database) -> None:
    one, release = await process(), asyncio.Event()
    await exhausted_record(one)

    async def cling(record: ExhaustionRecord, tx: Tx) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    policy = Policy(pacing_s=(0.0,), handler_timeout_s=0.2)
    assert await deliver(one, Report(cling), policy) == Failed(1, 0.0, "TimeoutError")
    release.set()
    assert await effects(database) == {}
    assert await deliver(one, Report()) == Acknowledged(2)


async def test_a_handler_that_ends_its_transaction_acknowledges_nothing(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await exhausted_record(one)
    await database.execute(
        "create procedure away() language plpgsql as $$ begin rollback; end $$; create table t (n integer)"
    )

    async def leave(record: ExhaustionRecord, tx: Tx) -> None:
        await tx._connection.execute("rollback")  # behind the product's back

    outcome = await deliver(one, Report(leave))
    assert isinstance(outcome, Failed), outcome
    assert (await row(database))["acknowledged_at"] is None
    assert await effects(database) == {}


async def test_a_deferred_constraint_of_the_handlers_is_its_failure(process: StartProcess, database: Database) -> None:
    one = await process()
    await exhausted_record(one)
    await database.execute("create table once (n integer unique deferrable initially deferred)")

    async def violate(record: ExhaustionRecord, tx: Tx) -> None:
        await tx.execute("insert into once values (1), (1)")

    outcome = await deliver(one, Report(violate))
    assert isinstance(outcome, Failed), outcome
    assert "UniqueViolationError" in outcome.error_class
    assert await effects(database) == {}


# What is nobody's fault.


async def test_a_deadlock_is_not_charged_but_bounded(process: StartProcess, database: Database) -> None:
    one = await process()
    await exhausted_record(one)

    async def collide(record: ExhaustionRecord, tx: Tx) -> None:
        await tx.execute("do $$ begin raise exception 'x' using errcode = '40P01'; end $$")

    policy = Policy(max_attempts=5, max_aborts=2, pacing_s=(0.0,), handler_timeout_s=10.0)
    assert isinstance(await deliver(one, Report(collide), policy), Aborted)
    found = await row(database)
    assert (found["tries"], found["aborts"]) == (0, 1)
    assert isinstance(await deliver(one, Report(collide), policy), Stuck)


@pytest.mark.parametrize("action", ACTIONS)
async def test_choices_hold_for_a_record_too_but_none_of_them_calls_the_handler_again_at_once(
    process: StartProcess, database: Database, action: str
) -> None:
    one, report = await process(), Report(ConnectionError("the ticket system is down"))
    await exhausted_record(one)
    chosen = Overrides(MappingProxyType({}), MappingProxyType({ConnectionError: ACTIONS[action]}))
    outcome = await deliver(one, report, Policy(pacing_s=(5.0,), faults=chosen))
    if action == "charge":
        assert outcome == Failed(1, 5.0, "ConnectionError")
    else:
        assert outcome == Aborted(5.0, "ConnectionError")
    assert len(report.calls) == 1
    found = await row(database)
    assert (found["tries"], found["aborts"]) == ((1, 0) if action == "charge" else (0, 1))


async def test_a_lost_session_is_not_charged_and_its_process_tries_again(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await exhausted_record(one)

    async def lose(record: ExhaustionRecord, tx: Tx) -> None:
        await one.end_sessions()

    assert isinstance(await deliver(one, Report(lose)), Unknown)
    assert await effects(database) == {}
    assert await deliver(one, Report()) == Acknowledged(1)
    found = await row(database)
    await one.pay()
    assert await row(database) == found, "the next look had settled it"
    assert found["aborts"] == 1
    assert await effects(database) == {"m-1": 1}


async def test_a_try_that_lost_its_session_is_settled_before_its_process_dies_of_another(
    process: StartProcess, database: Database
) -> None:
    one, other = await process("one"), await process("other")
    await exhausted_record(one)
    await lose(one)
    assert one.debts.count == 1
    await one.pay()
    found = await row(database)
    assert (found["tries"], found["aborts"], found["try_ended"], found["suspect"]) == (0, 1, True, False)
    await one.vanish()
    report = Report()
    assert await deliver(other, report) == Acknowledged(1)
    assert not other.company._suspects
    assert await effects(database) == {"m-1": 1}


async def test_a_try_is_not_settled_before_its_lost_session_has_let_the_record_go(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await exhausted_record(one)
    await lose(one)
    lingering = await database.connect()
    transaction = lingering.transaction()
    await transaction.start()
    await lingering.execute("select from inbox.exhaustion for update")
    assert not await one.debts.settle()
    assert not (await row(database))["try_ended"]
    await transaction.rollback()
    await lingering.close()
    await one.pay()
    assert (await row(database))["try_ended"]


async def test_an_owed_try_that_was_acknowledged_is_settled_by_that(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(database.url)
    one, report = await process(url=relay.url(database.url)), Report()
    await exhausted_record(one)
    rule = relay.hold_on(b"COMMIT\x00", Direction.TO_CLIENT)
    trying = asyncio.create_task(deliver(one, report))
    await asyncio.wait_for(rule.reached.wait(), 30)
    relay.cut()
    rule.release()
    assert isinstance(await trying, Unknown)
    await one.pay()
    found = await row(database)
    assert (found["acknowledged_by"], found["tries"], found["aborts"]) == ("on_exhausted", 1, 0)


async def test_no_suspect_runs_beside_a_try_that_is_owed(process: StartProcess, database: Database) -> None:
    one, suspect = await process(), message("suspect")
    await exhausted_record(one)
    await one.attempt(suspect, Handler(ValueError("no"), message_id="suspect"), redelivered=True)
    await lose(one)
    await database.execute("update inbox.message set suspect = true where message_id = 'suspect'")
    waiting = asyncio.create_task(one.attempt(suspect, Handler(message_id="suspect"), redelivered=True))
    await eventually(lambda: bool(one.company._suspects), what="the suspect waiting to be alone")
    await one.pay()
    assert await waiting == Processed(2)


async def test_a_read_only_server_counts_nothing(process: StartProcess, database: Database) -> None:
    one, report = await process(), Report()
    await exhausted_record(one)
    await database.execute(f"alter database {database.name} set default_transaction_read_only = on")
    await one.end_sessions()
    assert isinstance(await deliver(one, report), Unavailable)
    assert report.calls == []
    await database.execute(f"alter database {database.name} reset default_transaction_read_only")
    found = await row(database)
    assert (found["tries"], found["aborts"], found["try_id"]) == (0, 0, None)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_commit_whose_answer_never_came_is_found_out_by_the_next_look(
    moment: str, process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(database.url)
    one, report = await process(url=relay.url(database.url)), Report()
    await exhausted_record(one)
    rule = (
        relay.hold_on(b"acknowledge_try", Direction.TO_SERVER)
        if moment == "before"
        else relay.hold_on(b"COMMIT\x00", Direction.TO_CLIENT)
    )
    trying = asyncio.create_task(deliver(one, report))
    await asyncio.wait_for(rule.reached.wait(), 30)
    relay.cut()
    rule.release()
    assert isinstance(await trying, Unknown)
    await one.end_sessions()
    if moment == "after":
        assert (await row(database))["acknowledged_by"] == "on_exhausted"
        assert await due(one) == []
    else:
        assert await deliver(one, report) == Acknowledged(1)
    assert await effects(database) == {"m-1": 1}


async def test_a_shutdown_gives_the_try_back(process: StartProcess, database: Database) -> None:
    one, runner, running = await process(), Runner(), asyncio.Event()
    await exhausted_record(one)

    async def dawdle(record: ExhaustionRecord, tx: Tx) -> None:
        running.set()
        await asyncio.sleep(60)

    (found,) = await due(one)
    trying = asyncio.create_task(deliverer(one, runner).attempt(found, THREE, Report(dawdle)))
    await asyncio.wait_for(running.wait(), 30)
    runner.give_up()
    assert isinstance(await trying, Aborted)
    assert (await row(database))["tries"] == 0
    assert await deliver(one, Report()) == Acknowledged(1)


async def test_a_cancelled_try_leaves_nothing_behind_but_its_count(process: StartProcess, database: Database) -> None:
    one, running = await process(), asyncio.Event()
    await exhausted_record(one)

    async def dawdle(record: ExhaustionRecord, tx: Tx) -> None:
        running.set()
        await asyncio.sleep(60)

    trying = asyncio.create_task(deliver(one, Report(dawdle)))
    await asyncio.wait_for(running.wait(), 30)
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert await effects(database) == {}

    async def acknowledged() -> bool:
        return await deliver(one, Report()) == Acknowledged(1)

    assert one.debts.count == 1
    await one.pay()
    await eventually(acknowledged, what="the end of the cut session")
    assert await effects(database) == {"m-1": 1}


# Deaths and stale tries.


async def hold(one: Process, report: Report | None = None) -> tuple[asyncio.Task[TryOutcome], asyncio.Event]:
    """Begin a try whose handler waits; return it and what lets it go on."""
    running, go_on = asyncio.Event(), asyncio.Event()

    async def wait(record: ExhaustionRecord, tx: Tx) -> None:
        running.set()
        await go_on.wait()

    trying = asyncio.create_task(deliver(one, Report(wait)))
    await asyncio.wait_for(running.wait(), 30)
    return trying, go_on


async def lose(one: Process) -> None:
    """Let a try lose its session."""
    trying, go_on = await hold(one)
    await one.end_sessions()
    go_on.set()
    assert isinstance(await trying, Unknown)


async def test_a_record_that_is_being_tried_is_nobody_elses(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    await exhausted_record(one)
    trying, go_on = await hold(one)
    report = Report()
    assert await deliver(other, report) == Skipped()
    assert report.calls == []
    go_on.set()
    assert await trying == Acknowledged(1)
    assert await effects(database) == {"m-1": 1}


async def test_a_try_that_lost_its_session_is_nobody_elses_while_its_process_lives(
    process: StartProcess, database: Database
) -> None:
    one, other = await process("one"), await process("other")
    await exhausted_record(one)
    await lose(one)
    assert await deliver(other, Report()) == Skipped()
    assert await deliver(one, Report()) == Acknowledged(1)


async def test_a_try_that_was_taken_over_commits_nothing(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    await exhausted_record(one)
    trying, go_on = await hold(one)
    await one.vanish()
    assert await deliver(other, Report()) == Acknowledged(1)
    go_on.set()
    assert isinstance(await trying, Unknown)
    assert await effects(database) == {"m-1": 1}


async def test_a_try_that_was_taken_over_before_it_held_the_record_runs_no_handler(
    process: StartProcess, database: Database
) -> None:
    one, report = await process(), Report()
    record_id = await exhausted_record(one)
    found = (await due(one))[0]

    class Late(Deliverer):
        async def _run(self, one: Any, handle: Any) -> TryOutcome:
            # Frozen between the count and the lock, while another process takes the record over.
            await database.execute("update inbox.exhaustion set try_id = gen_random_uuid()")
            return await super()._run(one, handle)

    late = deliverer(one, kind=Late)
    assert await late.attempt(found, THREE, report) == Lost()
    assert report.calls == []
    assert (await row(database))["id"] == record_id


async def test_an_acknowledgement_by_hand_makes_a_counted_try_stale(process: StartProcess, database: Database) -> None:
    one, report = await process(), Report()
    record_id = await exhausted_record(one)
    found = (await due(one))[0]

    class Late(Deliverer):
        async def _run(self, one_try: Any, handle: Any) -> TryOutcome:
            async with one.housekeeping.acquire() as connection:
                answers = await exhaustions.acknowledge(connection, [record_id], by_whom="ann")
            assert answers == {record_id: Answer.DONE}
            return await super()._run(one_try, handle)

    late = deliverer(one, kind=Late)
    assert await late.attempt(found, THREE, report) == Lost()
    assert report.calls == []
    assert (await row(database))["acknowledged_by"] == "ann"


async def test_the_try_after_a_death_runs_alone_and_the_death_in_company_was_free(
    process: StartProcess, database: Database
) -> None:
    one, other, third = await process("one"), await process("other"), await process("third")
    await exhausted_record(one)
    trying, go_on = await hold(one)
    await one.vanish()
    go_on.set()
    assert isinstance(await trying, Unknown)

    alone, dying = asyncio.Event(), asyncio.Event()

    async def die_alone(record: ExhaustionRecord, tx: Tx) -> None:
        alone.set()
        await dying.wait()

    neighbour = other.company.shared()
    await neighbour.__aenter__()
    suspect = asyncio.create_task(deliver(other, Report(die_alone)))
    await eventually(lambda: bool(other.company._suspects), what="the suspect waiting to be alone")
    found = await row(database)
    assert (found["tries"], found["aborts"], found["suspect"]) == (0, 1, True)
    await neighbour.__aexit__(None, None, None)
    await asyncio.wait_for(alone.wait(), 30)
    assert other.company._alone
    await other.vanish()
    dying.set()
    assert isinstance(await suspect, Unknown)

    assert await deliver(third, Report()) == Acknowledged(2)
    found = await row(database)
    assert (found["tries"], found["aborts"], found["suspect"]) == (2, 1, False)
    assert await effects(database) == {"m-1": 1}


async def test_deaths_alone_end_the_tries(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    await exhausted_record(one)
    trying, go_on = await hold(one)
    await one.vanish()
    go_on.set()
    await trying
    await database.execute("update inbox.exhaustion set try_alone = true")
    only_one = Policy(max_attempts=1, pacing_s=(0.0,), handler_timeout_s=10.0)
    report = Report()
    assert await deliver(other, report, only_one) == Stuck(1)
    assert report.calls == []
    assert (await row(database))["try_error"].startswith("ProcessDied")


async def test_a_process_that_stopped_gave_its_try_back(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    await exhausted_record(one)
    trying, go_on = await hold(one)
    await one.end_sessions()
    await one.member.stop(one.housekeeping)
    go_on.set()
    await trying
    assert await deliver(other, Report()) == Acknowledged(1)
    found = await row(database)
    assert (found["tries"], found["aborts"], found["suspect"]) == (1, 1, False)


# Order, and what it survives.


async def test_records_come_oldest_first_and_in_pages(process: StartProcess) -> None:
    one = await process()
    ids = await exhausted_records(one, "a", "b", "c")
    first = await deliverer(one).due("billing", after=None, limit=2)
    rest = await deliverer(one).due("billing", after=first[-1], limit=2)
    assert [found.id for found in first + rest] == ids
    assert await deliverer(one).due("shipping", after=None, limit=2) == []


async def test_a_record_survives_the_replay_of_its_message_and_its_end(
    process: StartProcess, database: Database
) -> None:
    one, report = await process(), Report()
    await exhausted_record(one)
    await database.execute(
        "update inbox.message set state = 'waiting', generation = generation + 1, due_at = inbox.clock(), "
        "finished_at = null, reason = null"
    )
    assert await one.attempt(message(), Handler(writes=False), redelivered=True) == Processed(1)
    assert await database.fetchval("select count(*) from inbox.message") == 0
    assert await deliver(one, report) == Acknowledged(1)
    assert (report.calls[0].generation, report.calls[0].envelope.message) == (1, message())


async def test_each_generation_that_is_exhausted_has_a_record_of_its_own(
    process: StartProcess, database: Database
) -> None:
    one, report = await process(), Report()
    await exhausted_record(one)
    await database.execute(
        "update inbox.message set state = 'waiting', generation = generation + 1, due_at = inbox.clock(), "
        "finished_at = null, reason = null"
    )
    ended(await one.attempt(message(), Handler(ValueError("again"), writes=False), ONCE, redelivered=True))
    records: list[UUID] = []
    for _ in range(2):
        assert await deliver(one, report) == Acknowledged(1)
        records.append(report.calls[-1].id)
    assert len(set(records)) == 2
    assert [record.generation for record in report.calls] == [1, 2]


async def test_nothing_is_begun_when_its_turn_comes_too_late(process: StartProcess, database: Database) -> None:
    one, report = await process(), Report()
    await exhausted_record(one)
    assert await deliver(one, report, may_begin=lambda: False) == Skipped()
    assert (await row(database))["tries"] == 0
