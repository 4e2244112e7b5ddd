"""What has ended is removed after its time, without a claim that waits, and what still owes something stays."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from inbox import Attempt, Policy, Tx
from inbox.outcomes import Absorbed, Duplicate, Processed, Reject
from inbox.retention import Horizons, detach, drop_detached, finish_detaching, made_at
from inbox.states import State
from pools import SessionSettings
from tests.support.cleaning import DAY_S, clean, cleaner, let_pass, never_waited, partitions, tables
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import Handler, StartProcess, ended, message, standing
from tests.support.process import StartFleet
from tests.support.service import Service
from tests.support.vhosts import Vhost

# Receipts.


async def test_partitions_go_when_all_their_receipts_are_past_the_horizon_and_not_before(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    assert await one.attempt(message(), Handler()) == Processed(1)
    first = await database.fetchrow("select name, upper from inbox.partitions_of('receipt') order by lower limit 1")
    assert first is not None
    left = first["upper"] - await database.fetchval("select inbox.clock()")
    await let_pass(database, 30 + left / timedelta(days=1) - 0.01)
    assert "receipt_partition" not in await clean(one)
    assert await one.attempt(message(), Handler()) == Duplicate()
    await let_pass(database, 30 + left / timedelta(days=1) + 0.01)
    assert (await clean(one))["receipt_partition"] == 1
    assert first["name"] not in await tables(database)
    assert await tables(database) == set(await partitions(database))


async def test_beyond_the_horizon_a_copy_of_a_processed_message_is_a_new_message(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    assert await one.attempt(message(), Handler()) == Processed(1)
    await let_pass(database, 45)
    assert await clean(one)
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(1)
    assert (await standing(database, message())).effects == 2


async def test_receipts_stay_as_long_as_the_service_that_wants_them_longest(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    patient = Horizons(receipts_s=60 * DAY_S, messages_s=1, exhaustions_s=1, history_s=1, replays_s=1)
    await clean(one, service="patient", horizons=patient)
    assert await one.attempt(message(), Handler()) == Processed(1)
    await let_pass(database, 50)
    assert "receipt_partition" not in await clean(one)
    assert await one.attempt(message(), Handler()) == Duplicate()
    # What a service wanted is forgotten when it has not been heard of for that long.
    await let_pass(database, 61)
    assert (await clean(one))["receipt_partition"] >= 1


async def test_a_table_that_a_crash_left_between_detaching_and_dropping_is_dropped(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await let_pass(database, 60)
    past = (await partitions(database))[0]
    await database.execute(f"alter table inbox.receipt detach partition inbox.{past} concurrently")
    strangers = ["receipt_99999999_999999", "receipt_2024", "receipts_20200101_000000"]
    for name in strangers:
        await database.execute(f"create table inbox.{name} (key uuid)")
    await database.execute(f"create schema other; create table other.{past} (key uuid)")
    await clean(one)
    assert past not in await tables(database)
    assert {name for name in strangers if await database.fetchval(f"select to_regclass('inbox.{name}') is not null")}
    assert await database.fetchval(f"select to_regclass('other.{past}') is not null")


async def test_a_detached_table_of_a_later_time_is_left_alone(process: StartProcess, database: Database) -> None:
    await process()
    last = (await partitions(database))[-1]
    await database.execute(f"alter table inbox.receipt detach partition inbox.{last} concurrently")
    connection = await database.connect()
    assert await drop_detached(connection, before=await database.fetchval("select inbox.clock()")) == []
    assert last in await tables(database)


async def pending(database: Database) -> list[str]:
    rows = await database.fetch("select inhrelid::regclass::text as name from pg_inherits where inhdetachpending")
    return [row["name"].removeprefix("inbox.") for row in rows]


async def test_an_interrupted_detaching_is_finished_and_stops_no_claim_before(
    process: StartProcess, database: Database
) -> None:
    one, works, may_end = await process(), asyncio.Event(), asyncio.Event()

    async def work(_: Attempt, tx: Tx) -> None:
        works.set()
        await may_end.wait()

    attempt = asyncio.create_task(one.attempt(message(), Handler(work)))
    await works.wait()
    await let_pass(database, 60)
    past = (await partitions(database))[0]
    impatient = await database.connect(lock_timeout="300ms")
    for interrupted in (detach(impatient, past), finish_detaching(impatient)):
        with pytest.raises(asyncpg.LockNotAvailableError):
            await interrupted
        assert await pending(database) == [past]
        assert await one.attempt(message("m-2"), Handler(message_id="m-2")) in (Processed(1), Duplicate())
    may_end.set()
    assert await attempt == Processed(1)
    await clean(one)
    assert await pending(database) == []
    assert past not in await tables(database)


async def test_a_step_that_would_have_to_wait_is_left_for_a_later_round_and_the_others_are_done(
    process: StartProcess, database: Database
) -> None:
    one = await process(
        session=SessionSettings(statement_timeout_s=5, idle_in_transaction_timeout_s=60, lock_timeout_s=1)
    )
    await fill_rejected(database, 1)
    reader = await database.connect()
    await reader.execute("begin")
    await reader.execute("select from inbox.receipt")
    await let_pass(database, 60)
    past = (await partitions(database))[0]
    cleaning = cleaner(one)
    async with asyncio.timeout(30):
        await cleaning.round()
    assert await pending(database) == [past]
    assert await left(database) == set()
    await reader.execute("rollback")
    await clean(one)
    assert past not in await tables(database)


async def test_a_detaching_that_somebody_else_has_finished_or_begun_is_left_to_them(
    process: StartProcess, database: Database
) -> None:
    await process()
    past = (await partitions(database))[0]
    connection = await database.connect()
    assert await detach(connection, past)
    assert not await detach(connection, past)
    assert await finish_detaching(connection) == []


async def test_two_cleaners_at_once_do_no_harm(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    await fill_rejected(database, 1200)
    await let_pass(database, 100)
    found = await asyncio.gather(clean(one), clean(other))
    assert sum(removed.get("message", 0) for removed in found) == 1200
    assert await tables(database) == set(await partitions(database))


async def test_no_claim_waits_while_receipts_are_removed_under_long_attempts(
    process: StartProcess, database: Database
) -> None:
    await never_waited(database, await process())


def test_only_names_of_our_own_say_when_a_partition_begins() -> None:
    assert made_at("receipt_20260102_030405") == datetime.fromisoformat("2026-01-02T03:04:05+00:00")
    for name in ("receipt_20261302_030405", "receipt_20260102", "receipts_20260102_030405", "x"):
        assert made_at(name) is None


# Messages that have ended.


async def fill_rejected(database: Database, number: int, *, consumer: str = "billing") -> list[UUID]:
    keys = [uuid4() for _ in range(number)]
    await database.execute(
        "insert into inbox.message (key, consumer, source, message_id, type, state, reason, body, properties, "
        "exchange, routing_key, first_seen_at, changed_at, finished_at) select key, $2, '/s', key::text, 't', "
        "'rejected', 'no', '', '', '', '', inbox.clock(), inbox.clock(), inbox.clock() from unnest($1::uuid[]) key",
        keys,
        consumer,
    )
    return keys


async def left(database: Database) -> set[UUID]:
    return {row["key"] for row in await database.fetch("select key from inbox.message")}


async def served(database: Database) -> None:
    """As when the republisher has served every obligation."""
    await database.execute("update inbox.message set copy_needed = false, dead_letter_needed = false")


async def test_a_message_that_ended_goes_after_its_time_with_its_attempts(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    assert ended(await one.attempt(message(), Handler(Reject("no"))))[0] is State.REJECTED
    await served(database)
    await let_pass(database, 29)
    assert "message" not in await clean(one)
    assert await one.attempt(message(), Handler()) == Absorbed(State.REJECTED)
    await let_pass(database, 31)
    assert (await clean(one))["message"] == 1
    assert await database.fetchval("select count(*) from inbox.attempt") == 0
    # Beyond the horizon a copy is a new message.
    assert await one.attempt(message(), Handler()) == Processed(1)


async def test_a_message_that_owes_something_stays(process: StartProcess, database: Database) -> None:
    one = await process()
    owes_letter, owes_copy, _ = await fill_rejected(database, 3)
    await database.execute("update inbox.message set dead_letter_needed = true where key = $1", owes_letter)
    await database.execute("update inbox.message set copy_needed = true where key = $1", owes_copy)
    await let_pass(database, 31)
    assert (await clean(one))["message"] == 1
    assert await left(database) == {owes_letter, owes_copy}


async def test_an_exhausted_message_stays_until_its_record_is_acknowledged(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    policy = Policy(max_attempts=1, pacing_s=(0.0,))
    assert ended(await one.attempt(message(), Handler(ValueError("no")), policy))[0] is State.EXHAUSTED
    await served(database)
    await let_pass(database, 31)
    assert "message" not in await clean(one)
    await database.execute("update inbox.exhaustion set acknowledged_at = inbox.clock(), acknowledged_by = 'me'")
    assert await clean(one) == {"message": 1}
    assert await database.fetchval("select count(*) from inbox.exhaustion") == 1
    await let_pass(database, 62)
    assert (await clean(one))["exhaustion"] == 1


async def test_messages_that_are_under_way_and_those_of_other_services_stay(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await one.attempt(message(), Handler(ValueError("no")))
    others = await fill_rejected(database, 2, consumer="shipping")
    await let_pass(database, 365)
    assert "message" not in await clean(one)
    assert await left(database) == {message().key, *others}


@pytest.mark.parametrize("held", ["the key's lock", "the row"])
async def test_a_message_that_somebody_holds_is_skipped_and_waited_for_by_nobody(
    process: StartProcess, database: Database, held: str
) -> None:
    one = await process()
    mine, *_ = await fill_rejected(database, 3)
    await let_pass(database, 31)
    holder = await database.connect()
    await holder.execute("begin")
    if held == "the row":
        await holder.execute("select from inbox.message where key = $1 for update", mine)
    else:
        await holder.execute("select pg_advisory_xact_lock(inbox.lock_id($1))", mine)
    async with asyncio.timeout(4):
        assert (await clean(one))["message"] == 2
    await holder.execute("rollback")
    assert (await clean(one))["message"] == 1


async def test_what_stays_does_not_keep_what_is_behind_it(process: StartProcess, database: Database) -> None:
    one = await process()
    owing = await fill_rejected(database, 1100)
    await database.execute("update inbox.message set dead_letter_needed = true")
    await fill_rejected(database, 700)
    await let_pass(database, 31)
    assert (await clean(one))["message"] == 700
    assert await left(database) == set(owing)


# Records.


async def test_history_stays_as_long_as_its_message_and_goes_after_its_time(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    (kept,) = await fill_rejected(database, 1)
    await database.execute("update inbox.message set dead_letter_needed = true")
    for key in (kept, uuid4()):
        await database.execute(
            "insert into inbox.history (key, consumer, source, message_id, type, generation, event, was, by_whom, "
            "reason, first_seen_at, at) values ($1, 'billing', '/s', 'm', 't', 1, 'replayed', 'rejected', 'me', 'why', "
            "inbox.clock(), inbox.clock())",
            key,
        )
    await let_pass(database, 59)
    assert "history" not in await clean(one)
    await let_pass(database, 61)
    assert (await clean(one))["history"] == 1
    assert await database.fetchval("select key from inbox.history") == kept


async def test_replay_jobs_go_after_their_time_and_one_that_runs_stays(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    over, runs = uuid4(), uuid4()
    for job, state in ((over, "finished"), (runs, "running")):
        await database.execute(
            "insert into inbox.replay (id, service, reason, by_whom, chosen_by, state, finished_at) "
            "values ($1, 'test', 'why', 'me', '{}', $2, case $2 when 'finished' then inbox.clock() end)",
            job,
            state,
        )
        await database.execute(
            "insert into inbox.replay_item (replay_id, position, key, generation, consumer, message_id) "
            "select $1, number, gen_random_uuid(), 1, 'billing', 'm' from generate_series(1, 700) number",
            job,
        )
    await let_pass(database, 61)
    assert (await clean(one))["replay"] == 701  # with its items
    assert [row["id"] for row in await database.fetch("select id from inbox.replay")] == [runs]
    assert await database.fetchval("select count(*) from inbox.replay_item") == 700


async def test_processes_that_ended_long_ago_are_forgotten(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    await other.member.stop(other.housekeeping)
    await let_pass(database, 31)
    await database.execute("update inbox.member set heartbeat_at = inbox.clock() where id = $1", one.member.id)
    assert (await clean(one))["member"] == 1
    assert [row["id"] for row in await database.fetch("select id from inbox.member")] == [one.member.id]


# A process.


async def test_a_process_removes_what_is_past_its_time_and_counts_it(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, tables={"retention": {"every": "200ms"}})
    await service.prepare()
    await service.publish("past", "recent", reject="no")
    one, other = await service.start(), await service.start()
    await service.settled()
    await served(database)
    await database.execute(
        "update inbox.message set finished_at = finished_at - interval '91 days' where message_id = 'past'"
    )

    async def removed() -> bool:
        return await database.fetchval("select array_agg(message_id) from inbox.message") == ["recent"]

    await eventually(removed, what="the removal of a message past its time")

    async def is_counted() -> bool:
        pages = [(await process.get("/metrics"))[1] for process in (one, other)]
        return sum('inbox_removed_total{what="message"} 1.0' in page for page in pages) == 1

    await eventually(is_counted, what="one process that counts it")
    await service.stopped(one, other)
    await service.at_rest()
