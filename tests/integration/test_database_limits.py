"""What a database does to attempts by its own rules, and what the inbox leaves behind in it."""

from __future__ import annotations

import asyncio

import pytest

from inbox import Attempt, Policy, Reject, Retry, Tx
from inbox.outcomes import Absorbed, Duplicate, Early, Ended, Outcome, Processed, Waiting
from inbox.states import State
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import PROCESSED, Handler, Standing, StartProcess, ended, message, standing

ODD_BODY = b'{"a":1,  "a":\t2, "n":123456789012345678901234567890, "u":"\\u0000"}\x00\xff\n'


async def test_a_session_that_idled_too_long_for_its_server_charges_nobody(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def idle(_: Attempt, tx: Tx) -> None:
        pid = await tx.fetchval("select pg_backend_pid()")
        await tx.execute("set local idle_in_transaction_session_timeout = '50ms'")

        async def is_gone() -> bool:
            return not await database.fetchval("select count(*) from pg_stat_activity where pid = $1", pid)

        await eventually(is_gone, what="the server ending the idle session")
        await tx.execute("select 1")

    await one.attempt(message(), Handler(idle))
    assert await standing(database, message()) == Standing(receipts=0, effects=0)
    outcome = await one.attempt(message(), Handler(idle), redelivered=True)
    assert not (isinstance(outcome, Waiting) and outcome.charged)
    await one.pay()
    assert (await standing(database, message())).attempts == (("aborted", False),)
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)
    assert await standing(database, message()) == PROCESSED


async def test_a_plan_that_a_migration_made_invalid_costs_no_attempt(process: StartProcess, database: Database) -> None:
    await database.execute("create table stock (sku text)")
    one = await process(lanes=1, headroom=0)  # one session, which remembers its plans

    async def read_all(_: Attempt, tx: Tx) -> None:
        await tx.fetch("select * from stock")

    assert await one.attempt(message("m-1"), Handler(read_all, message_id="m-1")) == Processed(1)
    await database.execute("alter table stock add column amount integer")
    handler = Handler(read_all, message_id="m-2")
    assert await one.attempt(message("m-2"), handler) == Processed(1)
    assert len(handler.calls) == 2, "the plan was still valid, so nothing was proven"
    assert await standing(database, message("m-2")) == PROCESSED


async def test_two_handlers_in_a_deadlock_both_commit_and_nobody_is_charged(
    process: StartProcess, database: Database
) -> None:
    await database.execute("create table account (id integer primary key, cents integer)")
    await database.execute("insert into account values (1, 0), (2, 0)")
    one, both_hold = await process(), asyncio.Barrier(2)

    def transfer(first: int, second: int) -> Handler:
        met = False

        async def step(_: Attempt, tx: Tx) -> None:
            nonlocal met
            await tx.execute("update account set cents = cents + 1 where id = $1", first)
            if not met:
                met = True
                await both_hold.wait()
            await tx.execute("update account set cents = cents + 1 where id = $1", second)

        return Handler(step, message_id=f"from-{first}")

    there, back = transfer(1, 2), transfer(2, 1)
    outcomes: list[Outcome] = await asyncio.gather(
        one.attempt(message("from-1"), there), one.attempt(message("from-2"), back)
    )
    assert outcomes == [Processed(1), Processed(1)]
    assert len(there.calls) + len(back.calls) == 3, "no deadlock came about, so nothing was proven"
    assert [row["cents"] for row in await database.fetch("select cents from account")] == [2, 2]
    for message_id in ("from-1", "from-2"):
        assert await standing(database, message(message_id)) == PROCESSED


async def test_what_stays_contended_for_every_rerun_waits_uncharged_and_ends_by_the_bound_of_aborts(
    process: StartProcess, database: Database
) -> None:
    policy = Policy(max_attempts=1, max_aborts=2, pacing_s=(0.0,), handler_timeout_s=10.0)
    one = await process()

    async def locked(_: Attempt, tx: Tx) -> None:
        await tx.execute("do $$ begin raise exception using errcode = '40P01'; end $$")

    handler = Handler(locked)
    first = await one.attempt(message(), handler, policy)
    assert isinstance(first, Waiting) and not first.charged
    assert len(handler.calls) == 1 + policy.max_reruns
    last = await one.attempt(message(), handler, policy, redelivered=True)
    assert ended(last) == (State.EXHAUSTED, 2, "aborts")
    found = await standing(database, message())
    assert found == Standing(
        receipts=0, effects=0, state="exhausted", reason="aborts", attempts=(("aborted", False), ("aborted", False))
    )


@pytest.mark.parametrize("words", ["a\x00b", "lone \ud800 surrogate", "\udcff", "x" * 300_000])
async def test_a_failure_whose_words_no_text_can_hold_is_recorded(
    process: StartProcess, database: Database, words: str
) -> None:
    one = await process()
    assert isinstance(await one.attempt(message("failed"), Handler(ValueError(words))), Waiting)
    assert (await standing(database, message("failed"))).attempts == (("failed", True),)
    assert isinstance(await one.attempt(message("rejected"), Handler(Reject(words))), Ended)
    assert (await standing(database, message("rejected"))).state == "rejected"


@pytest.mark.parametrize("answer", [ValueError("no"), Reject("no")], ids=["failed", "rejected"])
@pytest.mark.parametrize("redelivered", [False, True], ids=["first", "counted"])
async def test_the_body_on_record_is_the_body_that_came(
    process: StartProcess, database: Database, answer: Exception, redelivered: bool
) -> None:
    one = await process()
    odd = message(body=ODD_BODY, properties=b"\x20\x00\x00\x00\x00\x07\x01aS\x00\x00\x00\x01\xff")
    await one.attempt(odd, Handler(answer), redelivered=redelivered)
    row = await database.fetchrow("select body, properties from inbox.message where key = $1", odd.key)
    assert row is not None
    assert (row["body"], row["properties"]) == (ODD_BODY, odd.properties)


async def test_a_lock_that_somebody_left_in_a_session_is_freed_by_the_next_claim(
    process: StartProcess, database: Database
) -> None:
    one = await process(lanes=1, headroom=0)

    async def leave_a_lock(_: Attempt, tx: Tx) -> None:
        await tx.execute("select pg_advisory_lock(4711)")

    async def is_held() -> bool:
        return bool(
            await database.fetchval("select count(*) from pg_locks where locktype = 'advisory' and objid = 4711")
        )

    await one.attempt(message("m-1"), Handler(leave_a_lock, message_id="m-1"))
    assert await is_held(), "the handler's lock is gone already, so nothing was proven"
    for message_id, redelivered in (("m-2", False), ("m-3", True)):
        free: list[bool] = []

        async def look(_: Attempt, tx: Tx, free: list[bool] = free) -> None:
            free.append(not await is_held())
            await tx.execute("select pg_advisory_lock(4711)")

        handler = Handler(look, message_id=message_id)
        assert await one.attempt(message(message_id), handler, redelivered=redelivered) == Processed(1)
        assert free == [True]
    assert await one.attempt(message("m-4"), Handler(message_id="m-4")) == Processed(1)
    assert not await is_held()


async def test_a_message_that_succeeds_at_once_leaves_no_dead_rows(process: StartProcess, database: Database) -> None:
    one = await process()
    for number in range(20):
        assert await one.attempt(message(f"m-{number}"), Handler(message_id=f"m-{number}")) == Processed(1)
    await one.pool.close(1.0)  # a session tells its statistics at its end, if not before

    async def rows() -> dict[str, tuple[int, int, int]]:
        found = await database.fetch(
            "select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables "
            "where schemaname = 'inbox' and n_tup_ins + n_tup_upd + n_tup_del > 0 "
            "and relname not in ('ledger', 'member', 'migration')"
        )
        return {
            row["relname"].rstrip("0123456789_"): (row["n_tup_ins"], row["n_tup_upd"], row["n_tup_del"])
            for row in found
        }

    async def all_told() -> bool:
        return (await rows()).get("receipt", (0,))[0] >= 20

    await eventually(all_told, what="the statistics of twenty receipts")
    assert await rows() == {"receipt": (20, 0, 0)}


async def test_a_handler_that_asks_for_a_retry_has_one_effect_in_the_end(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def done(_: Attempt, tx: Tx) -> None:
        return

    handler = Handler(Retry("not yet"), Retry("not yet"), done)
    for number in (1, 2):
        outcome = await one.attempt(message(), handler, redelivered=number > 1)
        assert isinstance(outcome, Waiting) and outcome.charged and outcome.number == number
    assert await one.attempt(message(), handler, redelivered=True) == Processed(3)
    assert await one.attempt(message(), handler, redelivered=True) == Duplicate()
    assert len(handler.calls) == 3
    assert await standing(database, message()) == PROCESSED


async def test_a_retry_waits_at_least_as_long_as_the_handler_asked(process: StartProcess, database: Database) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(Retry(after="10m")))
    assert isinstance(outcome, Waiting) and outcome.delay_s == 600.0
    early = await one.attempt(message(), Handler(), redelivered=True)
    assert isinstance(early, Early) and 590 < early.remaining_s <= 600
    assert (await standing(database, message())).attempts == (("failed", True),)


@pytest.mark.parametrize(
    ("ending", "state"),
    [(ValueError("no"), State.EXHAUSTED), (Reject("no"), State.REJECTED)],
    ids=["exhausted", "rejected"],
)
async def test_copies_of_a_message_that_has_ended_start_nothing(
    process: StartProcess, database: Database, ending: Exception, state: State
) -> None:
    policy = Policy(max_attempts=1, pacing_s=(0.0,))
    one, two = await process("one"), await process("two")
    assert isinstance(await one.attempt(message(), Handler(ending), policy), Ended)
    before, handler = await standing(database, message()), Handler()
    copies = [
        each.attempt(message(), handler, policy, redelivered=redelivered)
        for each in (one, two)
        for redelivered in (False, True)
    ]
    for copy in copies:
        assert await copy == Absorbed(state)
    assert handler.calls == []
    assert await standing(database, message()) == before
