"""Who decides about an attempt whose session or process is gone, whom it costs what, and who runs alone afterwards."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from inbox import Attempt, Debts, Member, Policy, Tx
from inbox.debts import Debt
from inbox.outcomes import Contended, Early, Processed, Undecided, Unknown, Waiting
from inbox.queries import query
from inbox.states import State
from pools import Pool, PoolSpec, SessionSettings
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import (
    NO_PAUSE,
    PROCESSED,
    Handler,
    Process,
    Standing,
    StartProcess,
    ended,
    message,
    standing,
    succeed,
)
from tests.support.relay import RelayBefore

TWO = Policy(max_attempts=2, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=10.0)


async def lose(one: Process, policy: Policy = NO_PAUSE) -> None:
    """Let a counted attempt lose its session under its handler."""

    async def end_it(_: Attempt, tx: Tx) -> None:
        await one.end_sessions()

    assert isinstance(await one.attempt(message(), Handler(end_it, writes=False), policy, redelivered=True), Unknown)


async def die(one: Process, policy: Policy = NO_PAUSE) -> None:
    """Let a process die with the attempt that it runs: nothing of it ever settles what it left."""

    async def end_it(_: Attempt, tx: Tx) -> None:
        await one.vanish()

    await one.attempt(message(), Handler(end_it, writes=False), policy, redelivered=True)


# Lost sessions.


async def test_an_attempt_that_lost_its_session_is_nobody_elses_to_decide_while_its_process_lives(
    process: StartProcess, database: Database
) -> None:
    one, other, copies = await process("one"), await process("other"), Handler()
    await lose(one)
    assert one.debts.count == 1
    for copy_of in (one, other):
        assert await copy_of.attempt(message(), copies, redelivered=True) == Undecided()
        assert await copy_of.attempt(message(), copies) == Undecided()
    assert copies.calls == []
    assert await standing(database, message()) == Standing(0, 0, "attempting", (("started", True),))

    assert await one.debts.settle()
    assert one.debts.count == 0
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))
    assert await other.attempt(message(), copies, redelivered=True) == Processed(2)
    assert await standing(database, message()) == PROCESSED


async def test_a_debt_is_not_settled_before_the_lost_session_has_let_the_key_go(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await lose(one)
    lingering = await database.connect()
    await lingering.execute("select pg_advisory_lock(inbox.lock_id($1))", message().key)
    assert not await one.debts.settle()
    assert await standing(database, message()) == Standing(0, 0, "attempting", (("started", True),))
    await lingering.close()
    await one.pay()
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))


async def test_a_debt_that_cannot_be_settled_does_not_hold_up_the_next_one(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await lose(one)
    lingering = await database.connect()
    await lingering.execute("select pg_advisory_lock(inbox.lock_id($1))", message().key)
    one.debts.add(Debt(uuid4(), uuid4(), (0.0,)))
    assert not await one.debts.settle()
    assert one.debts.count == 1
    await lingering.close()
    await one.pay()


async def test_an_attempt_that_is_owed_for_long_keeps_nobody_waiting_any_more(
    process: StartProcess, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await process()
    await lose(one)
    lingering = await database.connect()
    await lingering.execute("select pg_advisory_lock(inbox.lock_id($1))", message().key)
    assert not await one.debts.settle()
    assert one.company._present == 1
    monkeypatch.setattr("inbox.debts.PRESENT_S", 0.0)
    assert not await one.debts.settle()
    assert one.company._present == 0
    await lingering.close()
    await one.pay()
    assert one.company._present == 0


@pytest.mark.parametrize(
    "fails",
    [
        "raise exception 'no'",
        # Ends the session under itself: an error of the connection.
        "perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(5)",
    ],
    ids=["by the server's answer", "by the loss of the session"],
)
async def test_a_debt_that_can_never_be_settled_keeps_no_other_waiting(
    process: StartProcess, database: Database, fails: str
) -> None:
    one = await process()
    stuck = Debt(uuid4(), uuid4(), (0.0,))
    one.debts.add(stuck)
    await lose(one)
    await database.execute(
        f"""
        alter function inbox.settle_debt rename to settle_debt_as_it_was;
        create function inbox.settle_debt(p_key uuid, p_claim uuid, p_pacing double precision[]) returns boolean
            language plpgsql as $$
        begin
            if p_claim = '{stuck.claim_id}' then {fails}; end if;
            return inbox.settle_debt_as_it_was(p_key, p_claim, p_pacing);
        end $$
        """
    )

    async def only_the_stuck_one_is_left() -> bool:
        assert not await one.debts.settle()
        return one.debts.count == 1

    await eventually(only_the_stuck_one_is_left, what="the settling of the other debt")
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))


async def test_debts_are_settled_in_the_background_when_the_database_is_back(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    one = await process()
    relay = await relay_before(database.url)
    session = SessionSettings(statement_timeout_s=5, idle_in_transaction_timeout_s=5)
    pool = Pool(relay.url(database.url), PoolSpec(name="debts", application_name="debts", session=session))
    await pool.open()
    debts = Debts(pool)
    await lose(one)
    relay.refuse()
    paying = asyncio.create_task(debts.run())
    for owed in one.debts._open.values():
        debts.add(owed.debt)
    assert not await debts.settle()
    await relay.open()
    await eventually(lambda: debts.count == 0, what="the settling of a debt")
    paying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await paying
    await pool.close(1.0)
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))


async def test_a_message_that_kills_its_session_each_time_ends_by_the_bound_of_aborts(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    policy = Policy(max_attempts=2, max_aborts=3, pacing_s=(0.0,), handler_timeout_s=10.0)
    for _ in range(policy.max_aborts):
        await lose(one, policy)
        await one.pay()
    handler = Handler()
    outcome = await one.attempt(message(), handler, policy, redelivered=True)
    assert ended(outcome) == (State.EXHAUSTED, 3, "aborts")
    assert handler.calls == []
    assert await standing(database, message()) == Standing(
        0, 0, "exhausted", (("aborted", False),) * 3, reason="aborts"
    )


# Dead processes.


async def test_a_death_in_company_is_free_once_and_the_next_attempt_runs_alone(
    process: StartProcess, database: Database
) -> None:
    dead, other = await process("dead"), await process("other")
    await die(dead)
    seen: list[tuple[str, bool, bool]] = []

    async def look(_: Attempt, tx: Tx) -> None:
        rows = await database.fetch("select outcome, charged, alone from inbox.attempt order by number")
        seen.extend((row["outcome"], row["charged"], row["alone"]) for row in rows)

    assert await other.attempt(message(), Handler(look), redelivered=True) == Processed(2)
    assert seen == [("crashed", False, False), ("started", True, True)]
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
async def test_a_message_that_kills_its_process_spends_its_own_budget_and_one_free_death(
    process: StartProcess, database: Database, max_attempts: int
) -> None:
    policy = Policy(max_attempts=max_attempts, pacing_s=(0.0,), handler_timeout_s=10.0)
    for number in range(1 + max_attempts):
        await die(await process(f"victim {number}"), policy)
        found = await standing(database, message())
        assert found.attempts[-1] == ("started", True)
    last, handler = await process("last"), Handler()
    outcome = await last.attempt(message(), handler, policy, redelivered=True)
    assert ended(outcome) == (State.EXHAUSTED, 1 + max_attempts, "attempts")
    assert handler.calls == []
    found = await standing(database, message())
    assert found.attempts == (("crashed", False),) + (("crashed", True),) * max_attempts
    assert set(found.errors) == {"ProcessDied"}


async def test_a_failure_clears_the_suspicion(process: StartProcess, database: Database) -> None:
    dead, other = await process("dead"), await process("other")
    await die(dead)
    suspected: list[bool] = []

    async def fail(_: Attempt, tx: Tx) -> None:
        suspected.append(await database.fetchval("select suspect from inbox.message"))
        raise ValueError("no")

    assert isinstance(await other.attempt(message(), Handler(fail), redelivered=True), Waiting)
    assert suspected == [True]
    assert await database.fetchval("select suspect from inbox.message") is False
    assert await other.attempt(message(), Handler(), redelivered=True) == Processed(3)


async def test_an_abort_does_not_clear_the_suspicion(process: StartProcess, database: Database) -> None:
    dead, other = await process("dead"), await process("other")
    await die(dead)
    await lose(other)
    await other.pay()
    assert await database.fetchval("select suspect from inbox.message") is True
    rows = await database.fetch("select outcome, alone from inbox.attempt order by number")
    assert [tuple(row) for row in rows] == [("crashed", False), ("aborted", True)]


async def test_a_suspect_waits_for_the_others_of_its_process_and_the_others_for_it(
    process: StartProcess, database: Database
) -> None:
    dead, one = await process("dead"), await process("one")
    await die(dead)
    works, may_end = asyncio.Event(), asyncio.Event()
    suspect_works, suspect_may_end = asyncio.Event(), asyncio.Event()

    async def work(_: Attempt, tx: Tx) -> None:
        works.set()
        await may_end.wait()

    async def be_suspected(_: Attempt, tx: Tx) -> None:
        suspect_works.set()
        await suspect_may_end.wait()

    before = asyncio.create_task(one.attempt(message("before"), Handler(work, message_id="before")))
    await works.wait()
    suspect = asyncio.create_task(one.attempt(message(), Handler(be_suspected), redelivered=True))

    await eventually(lambda: len(one.company._suspects) == 1, what="a suspect that waits at the gate")
    assert await database.fetchval("select suspect from inbox.message")
    late = Handler(message_id="after")
    after = asyncio.create_task(one.attempt(message("after"), late))
    await eventually(lambda: len(one.company._ordinary) == 1, what="a newcomer that waits at the gate")
    # Neither holds anything while it waits.
    assert (one.pool.statistics().in_use, suspect_works.is_set(), late.calls) == (1, False, [])
    may_end.set()
    await suspect_works.wait()
    assert await before == Processed(1)
    assert (one.pool.statistics().in_use, late.calls) == (1, [])
    suspect_may_end.set()
    assert await suspect == Processed(2)
    assert await after == Processed(1)


async def test_a_process_that_stopped_in_order_gave_its_attempts_up(process: StartProcess, database: Database) -> None:
    stopped, other = await process("stopped"), await process("other")
    await lose(stopped)
    await stopped.member.stop(stopped.housekeeping)
    seen: list[tuple[str, bool]] = []

    async def look(_: Attempt, tx: Tx) -> None:
        seen.extend((await standing(database, message())).attempts)

    assert await other.attempt(message(), Handler(look), redelivered=True) == Processed(2)
    assert seen == [("aborted", False), ("started", True)]


async def test_after_a_death_a_message_waits_its_pause(process: StartProcess, database: Database) -> None:
    paced = Policy(max_attempts=3, pacing_s=(5.0,), handler_timeout_s=10.0)
    dead, other, handler = await process("dead"), await process("other"), Handler()
    await die(dead, paced)
    early = await other.attempt(message(), handler, paced, redelivered=True)
    assert isinstance(early, Early)
    assert 4 < early.remaining_s <= 5
    assert handler.calls == []
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("crashed", False),))


async def test_a_process_that_looks_dead_and_holds_the_key_is_not_judged(
    process: StartProcess, database: Database
) -> None:
    one, other, copies = await process("one"), await process("other"), Handler()

    async def look_dead(_: Attempt, tx: Tx) -> None:
        await database.execute("update inbox.member set heartbeat_at = heartbeat_at - 2 * expiry")
        assert await other.attempt(message(), copies, redelivered=True) == Contended()

    assert await one.attempt(message(), Handler(look_dead), redelivered=True) == Processed(1)
    assert copies.calls == []
    assert await standing(database, message()) == PROCESSED


async def test_a_process_does_not_take_itself_for_dead_after_an_outage_that_kept_it_from_saying_that_it_lives(
    process: StartProcess, database: Database
) -> None:
    one, copies = await process(), Handler()
    await lose(one)
    await database.execute("update inbox.member set heartbeat_at = heartbeat_at - 2 * expiry")
    assert await one.attempt(message(), copies, redelivered=True) == Undecided()
    await one.pay()
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))
    assert await one.attempt(message(), copies, redelivered=True) == Processed(2)


async def test_nobody_is_charged_for_an_outage_that_kept_every_heartbeat_away_for_longer_than_the_expiry(
    process: StartProcess, database: Database
) -> None:
    one, other, copies = await process("one"), await process("other"), Handler()
    await lose(one)
    await database.execute("update inbox.member set heartbeat_at = heartbeat_at - 2 * expiry")
    assert await other.attempt(message(), copies, redelivered=True) == Undecided()
    await database.fetchval(query("beat"), other.member.id, [])
    assert await other.attempt(message(), copies, redelivered=True) == Undecided()
    await database.execute("update inbox.member set steady_since = steady_since - expiry + interval '1 s'")
    assert await other.attempt(message(), copies, redelivered=True) == Undecided()
    assert await standing(database, message()) == Standing(0, 0, "attempting", (("started", True),))
    await database.execute("update inbox.member set steady_since = steady_since - interval '1 s'")
    assert await other.attempt(message(), copies, redelivered=True) == Processed(2)


async def test_heartbeats_that_come_in_time_keep_a_process_steady(process: StartProcess, database: Database) -> None:
    one = await process()
    statement = "select steady_since < now() - expiry from inbox.member where id = $1"
    await database.execute("update inbox.member set heartbeat_at = heartbeat_at - expiry + interval '5 s'")
    await database.fetchval(query("beat"), one.member.id, [])
    assert await database.fetchval(statement, one.member.id)
    await database.execute("update inbox.member set heartbeat_at = heartbeat_at - expiry")
    await database.fetchval(query("beat"), one.member.id, [])
    assert not await database.fetchval(statement, one.member.id)


async def test_a_process_that_has_just_started_judges_nobody(process: StartProcess, database: Database) -> None:
    one, newcomer = await process("one"), await process("newcomer")
    await lose(one)
    await database.execute(
        "update inbox.member set heartbeat_at = heartbeat_at - 2 * expiry where id = $1", one.member.id
    )
    await newcomer.member.register(newcomer.housekeeping)
    assert await newcomer.attempt(message(), Handler(), redelivered=True) == Undecided()


async def test_a_process_that_was_taken_for_dead_cannot_undo_what_its_successor_did(
    process: StartProcess, database: Database
) -> None:
    frozen, other = await process("frozen"), await process("other")
    await die(frozen)
    assert await other.attempt(message(), Handler(), redelivered=True) == Processed(2)
    assert frozen.debts.count == 1
    await frozen.pay()
    assert await standing(database, message()) == PROCESSED


async def test_a_first_delivery_that_died_with_its_process_counts_from_its_redelivery_on(
    process: StartProcess, database: Database
) -> None:
    dead, other = await process("dead"), await process("other")

    async def end_it(_: Attempt, tx: Tx) -> None:
        await dead.vanish()

    await dead.attempt(message(), Handler(end_it))
    assert await standing(database, message()) == Standing(0, 0)
    handler = Handler(ValueError("no"), succeed)
    assert await other.attempt(message(), handler, TWO, redelivered=True) == Waiting(
        1, 0.0, charged=True, error_class="ValueError"
    )
    assert await other.attempt(message(), handler, TWO, redelivered=True) == Processed(2)


# Members.


async def test_a_member_lives_as_long_as_its_heartbeat_is_younger_than_its_expiry(
    process: StartProcess, database: Database
) -> None:
    one, other = await process("one"), await process("other")
    await lose(one)
    for age, outcome in (("expiry - interval '5 seconds'", Undecided()), ("expiry", Processed(2))):
        await database.execute(f"update inbox.member set heartbeat_at = now() - ({age}) where id = $1", one.member.id)
        assert await other.attempt(message(), Handler(), redelivered=True) == outcome


async def test_heartbeats_are_sent_and_a_member_that_was_forgotten_registers_again(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    member = Member(service="test", heartbeat_s=0.01)
    await member.register(one.housekeeping)
    beating = asyncio.create_task(member.beat(one.housekeeping))

    async def newer() -> bool:
        statement = "select heartbeat_at > started_at from inbox.member where id = $1"
        return bool(await database.fetchval(statement, member.id))

    await eventually(newer, what="a heartbeat")
    await database.execute("delete from inbox.member where id = $1", member.id)

    async def known() -> bool:
        return bool(await database.fetchval("select count(*) from inbox.member where id = $1", member.id))

    await eventually(known, what="a member that registers again")
    beating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beating


async def test_a_heartbeat_survives_an_outage_of_the_database(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(database.url)
    session = SessionSettings(statement_timeout_s=5, idle_in_transaction_timeout_s=5)
    pool = Pool(relay.url(database.url), PoolSpec(name="beats", application_name="beats", session=session))
    await pool.open()
    member = Member(service="test", heartbeat_s=0.01)
    await member.register(pool)
    beating = asyncio.create_task(member.beat(pool))
    relay.refuse()
    relay.cut()
    before = relay.accepted
    await relay.open()
    await eventually(lambda: relay.accepted > before, what="a heartbeat that connects again")

    async def young() -> bool:
        statement = "select heartbeat_at > now() - interval '1 second' from inbox.member where id = $1"
        return bool(await database.fetchval(statement, member.id))

    await eventually(young, what="a heartbeat after the outage")
    assert not beating.done()
    beating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beating
    await pool.close(1.0)


async def test_members_that_ended_long_ago_are_forgotten_unless_an_attempt_still_asks_for_them(
    process: StartProcess, database: Database
) -> None:
    idle, owner, young = await process("idle"), await process("owner"), await process("young")
    await lose(owner)
    await database.execute(
        "update inbox.member set heartbeat_at = now() - interval '8 days' where id = any($1)",
        [idle.member.id, owner.member.id],
    )
    await database.execute(query("forget_members"), 7 * 86_400.0)
    left = await database.fetch("select id from inbox.member")
    assert {row["id"] for row in left} == {owner.member.id, young.member.id}
    await owner.pay()
