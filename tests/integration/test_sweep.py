"""What no copy comes for: attempts whose process is gone are judged, and lost copies are asked for, and no others."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from inbox import Attempt, Policy, Tx
from inbox.outcomes import Processed, Waiting
from inbox.sweep import Quiet
from tests.support.clock import Clock
from tests.support.databases import Database
from tests.support.inboxes import NO_PAUSE, PROCESSED, Handler, Process, Standing, StartProcess, message, standing
from tests.support.operators import waiting
from tests.support.sweeping import AT_LATEST_S, QUIET_S, SLACK_S, sweep

SOON = Policy(max_attempts=3, max_aborts=5, pacing_s=(30.0,), handler_timeout_s=10.0)


async def die(one: Process, policy: Policy = NO_PAUSE, message_id: str = "m-1") -> None:
    """Let a process die with the attempt that it runs."""

    async def end_it(_: Attempt, tx: Tx) -> None:
        await one.vanish()

    handler = Handler(end_it, message_id=message_id, writes=False)
    await one.attempt(message(message_id), handler, policy, redelivered=True)


@pytest.fixture
def clock(database: Database) -> Clock:
    return Clock(database)


async def row(database: Database, message_id: str = "m-1") -> tuple[str, bool, int]:
    """Return state, copy_needed and sweeps of a message."""
    found = await database.fetchrow(
        "select state, copy_needed, sweeps from inbox.message where key = $1", message(message_id).key
    )
    assert found is not None
    return found["state"], found["copy_needed"], found["sweeps"]


# Attempts whose process is gone.


async def test_an_attempt_whose_process_died_is_judged_without_a_copy_and_waits_by_its_pacing(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    dead, one = await process("dead"), await process()
    await die(dead, SOON)
    sweeping = sweep(one, clock, policy=SOON)
    assert await sweeping.round() == {"waiting": 1}
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("crashed", False),))
    assert await database.fetchval("select due_at - changed_at from inbox.message") == timedelta(seconds=30)
    # The delivery of the dead process comes back by itself: it is asked for no sooner than any other.
    assert await row(database) == ("waiting", False, 0)
    assert await sweeping.round() == {}


async def test_the_death_of_a_suspect_that_ran_alone_is_charged_once_however_often_it_is_swept(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    first, second, one = await process("first"), await process("second"), await process()
    sweeping = sweep(one, clock)
    await die(first)
    await sweeping.round()
    await die(second)
    for _ in range(3):
        await sweeping.round()
    assert sweeping.moved == {"waiting": 2}
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("crashed", False), ("crashed", True)))
    copies = Handler()
    assert await one.attempt(message(), copies, redelivered=True) == Processed(3)
    assert await standing(database, message()) == PROCESSED


async def test_an_attempt_of_a_process_that_stopped_is_given_up_uncharged(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    stopped, one = await process("stopped"), await process()
    await die(stopped)
    await stopped.member.stop(stopped.housekeeping)
    assert await sweep(one, clock).round() == {"waiting": 1}
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))


async def test_an_attempt_of_a_living_process_is_left_to_it(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    living, one = await process("living"), await process()

    async def end_session(_: Attempt, tx: Tx) -> None:
        await living.end_sessions()

    await living.attempt(message(), Handler(end_session, writes=False), redelivered=True)
    assert await sweep(one, clock).round() == {}
    assert (await row(database))[0] == "attempting"
    await living.pay()


async def test_a_process_that_is_not_steady_judges_nobody(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    dead, one = await process("dead"), await process()
    await die(dead)
    await database.execute("update inbox.member set steady_since = inbox.clock() where id = $1", one.member.id)
    assert await sweep(one, clock).round() == {}
    assert (await row(database))[0] == "attempting"


async def test_a_sweep_that_ends_the_budget_leaves_one_record(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    once = Policy(max_attempts=1, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=10.0)
    first, second, one, other = [await process(name) for name in ("first", "second", "one", "other")]
    sweeps = [sweep(each, clock, policy=once) for each in (one, other)]
    await die(first, once)
    await sweeps[0].round()
    await die(second, once)
    await asyncio.gather(*(each.round() for each in sweeps))
    assert sweeps[0].moved + sweeps[1].moved == {"waiting": 1, "exhausted": 1}
    found = await standing(database, message())
    assert (found.state, found.reason, found.receipts) == ("exhausted", "attempts", 0)
    records = await database.fetch("select number, reason, error_class from inbox.exhaustion")
    assert [tuple(record) for record in records] == [(2, "attempts", "ProcessDied")]
    assert await database.fetchval("select dead_letter_needed from inbox.message")


async def test_a_death_that_the_sweep_judged_and_that_was_none_is_taken_back(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    late, one = await process("late"), await process()
    await die(late)
    assert late.debts.count == 1
    assert await sweep(one, clock).round() == {"waiting": 1}
    await late.pay()
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))


async def test_a_message_that_somebody_holds_or_that_cannot_be_judged_keeps_no_other_waiting(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one, keys = await process(), sorted((message(f"m-{number}").key, f"m-{number}") for number in range(4))
    for number, (_, message_id) in enumerate(keys):
        await die(await process(f"dead-{number}"), message_id=message_id)
    holder = await database.connect()
    await holder.execute("select pg_advisory_lock(inbox.lock_id($1))", keys[0][0])
    await database.execute(
        "create function fails() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$; "
        "create trigger fails before update on inbox.message for each row "
        f"when (new.key = '{keys[1][0]}') execute function fails()"
    )
    async with asyncio.timeout(10):
        assert await sweep(one, clock).round() == {"waiting": 2}
    await holder.close()


# Messages that wait.


async def stranded(one: Process, database: Database, clock: Clock, *ids: str) -> None:
    """Let messages wait an hour for their next attempt, and be past their time by the slack."""
    await waiting(one, *(ids or ("m-1",)))
    await clock.move_on(3600 + SLACK_S + 1)


async def test_a_message_whose_copy_is_lost_gets_another_one(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock)
    assert await sweep(one, clock).watched() == {"copy_needed": 1}
    assert await row(database) == ("waiting", True, 1)
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)
    assert await standing(database, message()) == PROCESSED


async def test_a_message_that_is_not_past_its_time_by_the_slack_is_left_alone(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await waiting(one, "m-1")
    sweeping = sweep(one, clock)
    await clock.move_on(3600 + SLACK_S - 4 / 3 * QUIET_S - 1)
    assert await sweeping.watched() == {}
    await clock.move_on(2)
    assert await sweeping.round() == {"copy_needed": 1}


async def test_each_further_copy_is_asked_for_after_twice_the_time(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock)
    sweeping = sweep(one, clock)
    await sweeping.watched()
    for doubled in (2, 4, 8):
        assert await sweeping.round() == {}, "a copy that is owed is not asked for again"
        await database.execute("update inbox.message set copy_needed = false")  # as when it was published, and lost
        await clock.move_on(doubled * SLACK_S - 5)
        assert await sweeping.round() == {}
        await clock.move_on(6)
        assert await sweeping.round() == {"copy_needed": 1}
    assert await row(database) == ("waiting", True, 4)


async def test_an_attempt_that_starts_forgets_how_often_it_was_asked_for(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock)
    await sweep(one, clock).watched()
    assert isinstance(
        await one.attempt(message(), Handler(ValueError("no"), writes=False), SOON, redelivered=True), Waiting
    )
    assert await row(database) == ("waiting", False, 0)
    assert await database.fetchval("select swept_at is null from inbox.message")


async def test_nothing_is_asked_for_before_the_queues_were_seen_empty_for_long_enough(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock)
    sweeping = sweep(one, clock)
    assert [await sweeping.round() for _ in range(5)] == [{}] * 5
    await clock.move_on(QUIET_S - 5)
    assert await sweeping.round() == {}
    sweeping.empty = False
    await clock.move_on(10)
    assert await sweeping.round() == {}
    sweeping.empty = True
    for _ in range(4):
        assert await sweeping.round() == {}
    await clock.move_on(QUIET_S + 1)
    assert await sweeping.round() == {"copy_needed": 1}


async def test_two_looks_are_too_few_however_long_they_are_apart(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock)
    sweeping = sweep(one, clock)
    assert await sweeping.round() == {}
    await clock.move_on(3600)
    assert await sweeping.round() == {}
    assert await sweeping.round() == {"copy_needed": 1}


async def test_nothing_is_asked_for_while_a_living_process_holds_the_consumer_paused(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one, other = await process("one"), await process("other")
    await stranded(one, database, clock)
    sweeping = sweep(one, clock)
    await database.execute("update inbox.member set expiry = '1 h', heartbeat_at = inbox.clock()")
    pause = "update inbox.member set paused = $2 where id = $1"
    await database.execute(pause, other.member.id, ["audit", "billing"])
    assert await sweeping.watched() == {}
    await database.execute(pause, other.member.id, ["audit"])
    assert await sweeping.watched() == {"copy_needed": 1}


@pytest.mark.parametrize("end", ["heartbeat_at = heartbeat_at - interval '2 h'", "stopped_at = inbox.clock()"])
async def test_a_pause_ends_with_its_process(process: StartProcess, database: Database, clock: Clock, end: str) -> None:
    one, other = await process("one"), await process("other")
    await stranded(one, database, clock)
    await database.execute("update inbox.member set expiry = '1 h', heartbeat_at = inbox.clock()")
    await database.execute("update inbox.member set paused = '{billing}' where id = $1", other.member.id)
    await database.execute(f"update inbox.member set {end} where id = $1", other.member.id)
    assert await sweep(one, clock).watched() == {"copy_needed": 1}


async def test_a_pause_in_another_service_or_of_another_consumer_is_no_matter(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one, other = await process("one"), await process("other")
    await stranded(one, database, clock)
    await database.execute("update inbox.member set expiry = '1 h', heartbeat_at = inbox.clock()")
    await database.execute("update inbox.member set paused = '{audit}' where id = $1", one.member.id)
    await database.execute(
        "update inbox.member set service = 'shop', paused = '{billing}' where id = $1", other.member.id
    )
    assert await sweep(one, clock).watched() == {"copy_needed": 1}


async def test_queues_that_are_never_empty_keep_a_message_waiting_for_a_day_and_no_longer(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await waiting(one, "m-1")
    sweeping = sweep(one, clock)
    sweeping.empty = False
    await clock.move_on(3600 + AT_LATEST_S - 5)
    assert [await sweeping.round() for _ in range(4)] == [{}] * 4
    await clock.move_on(6)
    assert await sweeping.round() == {"copy_needed": 1}
    await database.execute("update inbox.message set copy_needed = false")
    await clock.move_on(2 * AT_LATEST_S - 5)
    assert await sweeping.round() == {}
    await clock.move_on(6)
    assert await sweeping.round() == {"copy_needed": 1}


async def test_two_sweeps_at_once_ask_for_one_copy_of_each_message(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one, other = await process("one"), await process("other")
    ids = [f"m-{number}" for number in range(250)]
    await stranded(one, database, clock, *ids)
    sweeps = [sweep(each, clock) for each in (one, other)]
    for each in sweeps:
        each.empty = False
        await each.round()
        each.empty = True
        for _ in range(2):
            await each.round()
    await clock.move_on(QUIET_S + 1)
    await asyncio.gather(*(each.round() for each in sweeps))
    assert sweeps[0].moved + sweeps[1].moved == {"copy_needed": 250}
    counted = await database.fetch("select copy_needed, sweeps, count(*) from inbox.message group by 1, 2")
    assert [tuple(each) for each in counted] == [(True, 1, 250)]


async def test_a_message_that_somebody_holds_is_asked_for_in_a_later_round_and_keeps_no_other_waiting(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock, "m-1", "m-2")
    holder = await database.connect()
    await holder.execute("select pg_advisory_lock(inbox.lock_id($1))", message("m-1").key)
    sweeping = sweep(one, clock)
    assert await sweeping.watched() == {"copy_needed": 1}
    assert await row(database, "m-1") == ("waiting", False, 0)
    await holder.close()
    assert await sweeping.round() == {"copy_needed": 1}


async def test_a_message_of_another_consumer_is_left_alone(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock)
    await database.execute("update inbox.message set consumer = 'audit'")
    assert await sweep(one, clock).watched() == {}


@pytest.mark.parametrize("state", ["exhausted", "rejected", "discarded"])
async def test_a_message_that_has_ended_is_left_alone(
    process: StartProcess, database: Database, clock: Clock, state: str
) -> None:
    one = await process()
    await stranded(one, database, clock)
    await database.execute(
        "update inbox.message set state = $1, due_at = null, finished_at = inbox.clock(), reason = 'why'", state
    )
    assert await sweep(one, clock).watched() == {}


async def test_a_message_that_has_a_receipt_gets_no_copy_and_its_row_goes(
    process: StartProcess, database: Database, clock: Clock
) -> None:
    one = await process()
    await stranded(one, database, clock)
    await database.execute(
        "insert into inbox.receipt (key, processed_at) values ($1, clock_timestamp())", message().key
    )
    assert await sweep(one, clock).watched() == {}
    assert await standing(database, message()) == Standing(receipts=1, effects=0)


# What was seen.


def test_a_gap_between_two_looks_makes_what_was_seen_before_count_no_more() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)

    def lasts(*looks_at_s: float) -> bool:
        quiet = Quiet(longest_gap_s=10.0)
        now = began
        for at in looks_at_s:
            now = began + timedelta(seconds=at)
            quiet.seen(True, now=now, at=at)
        return quiet.lasts(15.0, now=now)

    assert lasts(100, 110, 120)
    assert not lasts(100, 111, 121)
    assert not lasts(100, 105, 110)
    assert not Quiet(longest_gap_s=10.0).lasts(0.0, now=began)
