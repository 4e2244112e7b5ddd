"""Partitions of the receipt are made ahead, contiguous, and without a claim that waits for it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from inbox import Attempt, Tx, check_server, keep_partitions, migrate
from inbox.errors import UnsafeServer
from inbox.outcomes import Duplicate, Processed
from inbox.partitions import AHEAD, EVENTS, RECEIPTS, covered_until, ensure, runway_s, width
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import Handler, StartProcess, message

MONTH_S = 30 * 86_400.0


async def spans(database: Database) -> list[tuple[datetime, datetime]]:
    return [
        tuple(row) for row in await database.fetch("select lower, upper from inbox.partitions_of('receipt') order by 1")
    ]


async def contiguous(database: Database) -> list[tuple[datetime, datetime]]:
    """Assert that partitions follow on one another without gap or overlap, and return them."""
    found = await spans(database)
    assert found
    for (_, upper), (lower, _) in pairwise(found):
        assert upper == lower
    return found


async def test_a_new_database_has_partitions_for_now_and_for_the_time_ahead(empty_database: Database) -> None:
    await migrate(empty_database.url, retention_s=MONTH_S)
    found = await contiguous(empty_database)
    now = await empty_database.fetchval("select inbox.clock()")
    assert found[0][0] <= now
    assert covered_until(found, now) >= now + AHEAD * width(MONTH_S)
    assert await runway_s(await empty_database.connect(), RECEIPTS) > 20 * 86_400


async def test_every_partition_has_the_second_belt_and_none_is_the_default_one(database: Database) -> None:
    partitions = await database.fetch("select inhrelid from pg_inherits where inhparent = 'inbox.receipt'::regclass")
    unique = await database.fetch(
        "select indrelid from pg_index where indisunique and indisvalid and indnatts = 1 "
        "and indrelid in (select inhrelid from pg_inherits where inhparent = 'inbox.receipt'::regclass)"
    )
    assert {row["inhrelid"] for row in partitions} == {row["indrelid"] for row in unique}
    assert await database.fetchval(
        "select partdefid = 0 from pg_partitioned_table where partrelid = 'inbox.receipt'::regclass"
    )


async def test_nothing_is_made_twice(database: Database) -> None:
    connection = await database.connect()
    before = await contiguous(database)
    assert await ensure(connection, retention_s=MONTH_S) == []
    assert await contiguous(database) == before


@pytest.mark.parametrize("retention_s", [3600.0, 5 * 86_400.0, 365 * 86_400.0])
async def test_a_changed_retention_leaves_no_gap_and_no_overlap(database: Database, retention_s: float) -> None:
    connection = await database.connect()
    before = await contiguous(database)
    await database.execute(
        "create or replace function inbox.clock() returns timestamptz language sql volatile as "
        "$$ select clock_timestamp() + interval '15 days' $$"
    )
    await ensure(connection, retention_s=retention_s)
    after = await contiguous(database)
    assert after[: len(before)] == before
    assert await runway_s(connection, RECEIPTS) >= (AHEAD * width(retention_s)).total_seconds()


async def test_processes_of_different_retention_at_once_leave_no_gap_and_no_overlap(empty_database: Database) -> None:
    await migrate(empty_database.url, retention_s=3600.0)
    connections = [await empty_database.connect() for _ in range(6)]
    await asyncio.gather(
        *(
            ensure(connection, retention_s=days * 86_400.0)
            for connection, days in zip(connections, (1, 2, 3, 5, 8, 13), strict=True)
        )
    )
    await contiguous(empty_database)
    assert await runway_s(connections[0], RECEIPTS) >= (AHEAD * width(13 * 86_400.0)).total_seconds()


async def test_a_gap_is_seen_although_later_time_is_covered_and_it_is_filled(database: Database) -> None:
    connection = await database.connect()
    first = await database.fetchval("select name from inbox.partitions_of('receipt') order by lower limit 1")
    await database.execute(f"alter table inbox.receipt detach partition inbox.{first}")
    assert await runway_s(connection) == 0
    with pytest.raises(UnsafeServer, match="no partition for now"):
        await check_server(connection)
    assert len(await ensure(connection, retention_s=MONTH_S)) == 1
    await contiguous(database)
    await check_server(connection)


async def test_a_gap_in_the_partitions_of_events_is_seen_and_filled_too(database: Database) -> None:
    connection = await database.connect()
    first = await database.fetchval("select name from inbox.partitions_of('event') order by lower limit 1")
    await database.execute(f"alter table inbox.event detach partition inbox.{first}")
    assert await runway_s(connection) == 0 < await runway_s(connection, RECEIPTS)
    with pytest.raises(UnsafeServer, match="no partition for now"):
        await check_server(connection)
    assert len(await ensure(connection, EVENTS, retention_s=3 * 86_400.0)) == 1
    await check_server(connection)


async def test_an_event_is_staged_with_its_transaction_and_its_key_has_one_slot(database: Database) -> None:
    staging = (
        "select inbox.stage_event('shop', $1, $2, 'order.placed', 'events', 'order.placed', '\\x', '{}', "
        "null, null, $3::float)"
    )
    for number, (key, delay_s) in enumerate([("k", None), (None, None), ("k", 60.0)]):
        await database.fetchval(staging, key, f"m-{number}", delay_s)
    rows = await database.fetch("select *, pg_xact_status(xid) as status from inbox.event order by id")
    assert [row["state"] for row in rows] == ["staged", "staged", "waiting"]
    assert rows[0]["slot"] == rows[2]["slot"] and 0 <= rows[1]["slot"] < 32
    assert [row["due_at"] is not None for row in rows] == [False, False, True]
    assert {row["status"] for row in rows} == {"committed"}
    assert rows[0]["xid"] < rows[1]["xid"] < rows[2]["xid"]


@pytest.mark.parametrize("style", ["German, DMY", "SQL, DMY", "Postgres, MDY"])
async def test_bounds_are_read_right_whatever_the_session_says_about_dates(
    empty_database: Database, style: str
) -> None:
    await migrate(empty_database.url, retention_s=MONTH_S)
    expected = await contiguous(empty_database)
    connection = await empty_database.connect(DateStyle=style, TimeZone="Asia/Kolkata")
    assert await ensure(connection, retention_s=MONTH_S) == []
    assert await runway_s(connection) > 0
    rows = await connection.fetch("select lower, upper from inbox.partitions_of('receipt') order by 1")
    assert [tuple(row) for row in rows] == expected


async def test_a_partition_is_attached_while_a_long_attempt_runs_and_no_claim_waits_for_it(
    process: StartProcess, database: Database
) -> None:
    one, works, may_end = await process(), asyncio.Event(), asyncio.Event()

    async def work(_: Attempt, tx: Tx) -> None:
        works.set()
        await may_end.wait()

    attempt = asyncio.create_task(one.attempt(message(), Handler(work)))
    await works.wait()
    connection = await database.connect(lock_timeout="1s")
    before = len(await spans(database))
    async with asyncio.timeout(5):
        assert await ensure(connection, retention_s=10 * MONTH_S)
        assert await one.attempt(message("m-2"), Handler(message_id="m-2")) == Processed(1)
    assert len(await spans(database)) > before
    may_end.set()
    assert await attempt == Processed(1)


async def test_a_receipt_is_found_across_the_end_of_its_partition(process: StartProcess, database: Database) -> None:
    one = await process()
    assert await one.attempt(message(), Handler()) == Processed(1)
    _, end = (await spans(database))[0]
    await database.execute(
        "create or replace function inbox.clock() returns timestamptz language sql volatile as "
        f"$$ select timestamptz '{end.isoformat()}' + interval '1 second' $$"
    )
    for redelivered in (False, True):
        assert await one.attempt(message(), Handler(), redelivered=redelivered) == Duplicate()
    assert await one.attempt(message("m-2"), Handler(message_id="m-2")) == Processed(1)
    assert await database.fetchval("select count(distinct tableoid) from inbox.receipt") == 2


async def test_partitions_are_kept_ahead_in_the_background_through_a_fault(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    before = await spans(database)
    blocker = await database.connect()
    await blocker.execute("begin; select pg_advisory_xact_lock(7310866438)")
    keeping = asyncio.create_task(keep_partitions(one.housekeeping, receipts_s=10 * MONTH_S, events_s=MONTH_S))

    async def waits() -> bool:
        sessions = await database.sessions(one.housekeeping.spec.application_name)
        return any(row["wait_event_type"] == "Lock" for row in sessions)

    await eventually(waits, what="a maker of partitions that waits for another one")
    await blocker.execute("rollback")

    async def made() -> bool:
        return len(await spans(database)) > len(before)

    await eventually(made, what="new partitions")
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    await contiguous(database)


def test_a_partition_is_never_narrower_than_an_hour() -> None:
    assert width(0.0) == timedelta(hours=1)
