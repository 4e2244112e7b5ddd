"""What an attempt's statements read: an index of each table, whatever stands in them.

The functions are called as they are, and the server is asked which scans that took: a plan that EXPLAIN shows for a
copy of a statement is not the one that a function keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from inbox import statements
from inbox.queries import query
from tests.support.databases import Database

ROWS = 10_000
JUDGE = uuid4()
IDENTITY = ("billing", "/shop", "m", "order", b"", b"", "", "", None)


async def fill(database: Database) -> None:
    """Ten thousand receipts, rows, and attempts."""
    await database.execute(
        f"""
        insert into inbox.member (id, service, build, host, pid, expiry, started_at, heartbeat_at, steady_since)
        select gen_random_uuid(), 'test', 'test', 'test', 1, '30 s', now(), now(), now()
          from generate_series(1, {ROWS});
        insert into inbox.receipt (key) select gen_random_uuid() from generate_series(1, {ROWS});
        insert into inbox.message (key, consumer, source, message_id, type, state, due_at, body, properties, exchange,
                                   routing_key, first_seen_at, changed_at)
        select gen_random_uuid(), 'billing', '/shop', number, 'order', 'waiting', now(), '', '', '', '', now(), now()
          from generate_series(1, {ROWS}) number;
        insert into inbox.attempt (claim_id, key, generation, number, member_id, alone, outcome, charged, started_at,
                                   finished_at)
        select gen_random_uuid(), key, 1, 1, gen_random_uuid(), false, 'failed', true, now(), now() from inbox.message;
        """
    )


@pytest_asyncio.fixture
async def session(database: Database) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A session that has made its plans while the tables were empty and looked so, as on the first day."""
    await database.execute("analyze")
    await database.execute(
        "insert into inbox.member (id, service, build, host, pid, expiry, started_at, heartbeat_at, steady_since) "
        "values ($1, 'test', 'test', 'test', 1, '1 h', now(), now(), now() - interval '2 h')",
        JUDGE,
    )
    connection = await database.connect()
    for _ in range(8):  # the sixth plan is kept
        await play(connection, uuid4())
    await fill(database)
    yield connection


async def play(connection: asyncpg.Connection[Any], key: UUID) -> Counter[tuple[str, str]]:
    """Let one message take every way through the functions, undo it, and return the scans that it took."""
    literal = statements.literal(key)
    transaction = connection.transaction()
    await transaction.start()
    before = await scans(connection)
    try:
        await connection.fetch(f"select from inbox.look({literal},{statements.literal(uuid4())})")
        await start(connection, key, uuid4(), uuid4())
        claim_id = uuid4()
        await start(connection, key, claim_id)  # which finds that nobody knows the member whose attempt this is
        await fail(connection, key, claim_id)
        # Planned anew each time, unlike what is tested here.
        await connection.execute(f"update inbox.message set due_at = 'epoch' where key = {literal}")
        claim_id = uuid4()
        await start(connection, key, claim_id)
        await connection.fetch(query("settle_debt"), key, claim_id, [0.0])
        await connection.execute(f"call inbox.stamp({literal})")
        after = await scans(connection)
    finally:
        await transaction.rollback()
    return after - before


async def scans(connection: asyncpg.Connection[Any]) -> Counter[tuple[str, str]]:
    """Return the scans that this session has made and not reported yet, by table and kind."""
    rows = await connection.fetch(
        "select relname, seq_scan, idx_scan from pg_stat_xact_user_tables where schemaname = 'inbox'"
    )
    return Counter({(row["relname"], kind): row[kind] or 0 for row in rows for kind in ("seq_scan", "idx_scan")})


async def start(connection: asyncpg.Connection[Any], key: UUID, claim_id: UUID, member_id: UUID = JUDGE) -> None:
    verdict = await connection.fetchval(
        query("start_attempt"), key, claim_id, member_id, True, True, *IDENTITY, 9, 9, [0.0], 0.0
    )
    assert verdict == "run"


async def fail(connection: asyncpg.Connection[Any], key: UUID, claim_id: UUID) -> None:
    ending = (0.0, "failed", "E", "no", None, None, None, 9, 9, [0.0])
    state = await connection.fetchval(query("record_outcome"), key, claim_id, uuid4(), False, False, *IDENTITY, *ending)
    assert state == "waiting"


async def end(database: Database) -> None:
    """Let most of the messages have ended, some of them exhausted, and give each a place in the history."""
    await database.execute(
        """
        update inbox.message set state = 'rejected', reason = 'no', due_at = null,
                                 finished_at = now() - random() * interval '400 days'
         where message_id::integer % 10 > 0;
        insert into inbox.history (key, consumer, source, message_id, type, generation, event, was, by_whom, reason,
                                   first_seen_at, at)
        select key, consumer, source, message_id, type, 1, 'discarded', 'waiting', 'me', 'why', now(),
               now() - random() * interval '400 days' from inbox.message;
        insert into inbox.exhaustion (key, generation, number, claim_id, consumer, source, message_id, type, reason,
                                      body, properties, exchange, routing_key, first_seen_at, exhausted_at, due_at,
                                      acknowledged_at, acknowledged_by)
        select key, 1, 1, gen_random_uuid(), consumer, source, message_id, type, 'attempts', '', '', '', '', now(),
               now(), now(), now() - random() * interval '400 days', 'me' from inbox.message;
        insert into inbox.replay (id, service, reason, by_whom, chosen_by, state, created_at, finished_at)
        select gen_random_uuid(), 'test', 'why', 'me', '{}', 'finished', at, at
          from (select now() - random() * interval '400 days' as at from generate_series(1, 10000)) jobs;
        insert into inbox.replay_item (replay_id, position, key, generation, consumer, message_id)
        select id, 1, gen_random_uuid(), 1, 'billing', 'm' from inbox.replay;
        """
    )


@pytest.mark.parametrize("analyzed", [False, True], ids=["before the server has looked", "after"])
async def test_no_statement_of_the_cleaning_reads_a_whole_table(
    database: Database, session: asyncpg.Connection[Any], analyzed: bool
) -> None:
    await end(database)
    if analyzed:
        await database.execute("analyze")
    keep_s = 364 * 86_400.0
    start = (datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
    for statement, arguments, tables in (
        ("remove_messages", ("billing", keep_s, *start, 50), {"message"}),
        ("remove_exhaustions", ("billing", keep_s, 50), {"exhaustion"}),
        ("remove_history", ("billing", keep_s, 50), {"history"}),
        ("remove_replays", ("test", keep_s, 50), {"replay", "replay_item"}),
        ("count_open", (["billing", "nobody"], [500, 500]), {"message"}),
    ):
        transaction = session.transaction()
        await transaction.start()
        before = await scans(session)
        await session.fetch(query(statement), *arguments)
        found = await scans(session) - before
        await transaction.rollback()
        by_index = {table for (table, kind), number in found.items() if kind == "idx_scan" and number}
        whole = {table: number for (table, kind), number in found.items() if kind == "seq_scan" and number}
        assert (statement, whole) == (statement, {})
        assert by_index >= tables, statement


async def leave(database: Database) -> None:
    """Let a few attempts have lost their process, and most messages be far from due."""
    await database.execute(
        """
        update inbox.message set due_at = now() + interval '1 d' where message_id::integer % 10 > 0;
        update inbox.message m set state = 'attempting', due_at = null, claim_id = a.claim_id
          from inbox.attempt a where a.key = m.key and m.message_id::integer % 1000 = 0;
        update inbox.attempt set outcome = 'started', finished_at = null
         where claim_id in (select claim_id from inbox.message);
        """
    )


@pytest.mark.parametrize("analyzed", [False, True], ids=["before the server has looked", "after"])
async def test_no_statement_of_the_sweep_reads_a_whole_table(
    database: Database, session: asyncpg.Connection[Any], analyzed: bool
) -> None:
    await leave(database)
    if analyzed:
        await database.execute("analyze")
    lost = await database.fetchrow("select key, claim_id from inbox.message where state = 'attempting' limit 1")
    waits = await database.fetchval("select key from inbox.message where state = 'waiting' and due_at < now() limit 1")
    assert lost is not None
    start = (datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
    for statement, arguments, tables, answers in (
        ("look_at_consumer", ("test", "billing"), {"member"}, 1),
        ("find_ownerless", ("billing", JUDGE, UUID(int=0), 5), {"message", "attempt", "member"}, 5),
        ("judge_ownerless", (*lost, JUDGE, 9, 9, [0.0]), {"message", "attempt", "member"}, 1),
        ("find_stranded", ("billing", 0.0, *start, 50), {"message"}, 50),
        ("mark_stranded", (waits, 1, 0.0), {"message"}, 1),
    ):
        transaction = session.transaction()
        await transaction.start()
        before = await scans(session)
        rows = await session.fetch(query(statement), *arguments)
        found = await scans(session) - before
        await transaction.rollback()
        by_index = {table for (table, kind), number in found.items() if kind == "idx_scan" and number}
        partitions = {row["name"] for row in await database.fetch("select name from inbox.partitions_of('receipt')")}
        whole = {
            table
            for (table, kind), number in found.items()
            if kind == "seq_scan" and number and table not in partitions
        }
        assert (statement, whole) == (statement, set())
        assert by_index >= tables, statement
        assert len(rows) == answers, statement


@pytest.mark.parametrize("analyzed", [False, True], ids=["before the server has looked", "after"])
@pytest.mark.parametrize("what", ["copy", "dead_letter"])
async def test_no_statement_of_the_republisher_reads_a_whole_table(
    database: Database, session: asyncpg.Connection[Any], what: str, analyzed: bool
) -> None:
    await database.execute(f"update inbox.message set {what}_needed = true where message_id::integer % 10 = 0")
    if analyzed:
        await database.execute("analyze")
    transaction = session.transaction()
    await transaction.start()
    before = await scans(session)
    (owed,) = await session.fetch(query("find_owed"), what, "billing", datetime(1, 1, 1, tzinfo=UTC), UUID(int=0), 1)
    version = (what, owed["key"], owed["generation"], owed["state"], owed["changed_at"])
    assert await session.fetch(query("read_owed"), *version)
    assert await session.fetchval(query("clear_owed"), *version)
    found = await scans(session) - before
    await transaction.rollback()
    assert {table: number for (table, kind), number in found.items() if kind == "seq_scan" and number} == {}
    # Each page is one look into the index of what is owed, and no sorting of it.
    assert found["message", "idx_scan"] == 3


@pytest.mark.parametrize("analyzed", [False, True], ids=["before the server has looked", "after"])
@pytest.mark.parametrize("what", ["copy", "dead_letter"])
async def test_a_round_of_the_republisher_reads_what_is_owed_and_no_other_row(
    database: Database, what: str, analyzed: bool
) -> None:
    await database.execute(
        """
        insert into inbox.message (key, consumer, source, message_id, type, state, due_at, body, properties, exchange,
                                   routing_key, first_seen_at, changed_at)
        select gen_random_uuid(), 'billing', '/shop', number, 'order', 'waiting', now(), '', '', '', '', now(),
               now() - make_interval(secs => number)
          from generate_series(1, 100000) number;
        """
    )
    await database.execute(f"update inbox.message set {what}_needed = true where message_id::integer % 20000 = 0")
    if analyzed:
        await database.execute("vacuum analyze inbox.message")
    connection = await database.connect()
    start = (datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
    for name, arguments, most in (
        ("find_owed", (what, "billing", *start, 200), 5),
        ("find_owed", (what, "audit", *start, 200), 0),
        ("find_owed", ("dead_letter" if what == "copy" else "copy", "billing", *start, 200), 0),
    ):
        transaction = connection.transaction()
        await transaction.start()
        before = await fetched(connection)
        assert len(await connection.fetch(query(name), *arguments)) == most
        after = await fetched(connection)
        await transaction.rollback()
        # The five that owe something, whoever asks, and the versions of them that the update has left behind.
        assert after - before <= 10, (name, arguments)


async def fetched(connection: asyncpg.Connection[Any]) -> int:
    """Return how many rows of `inbox.message` this session has read and not reported yet, by whatever scan."""
    number: int = await connection.fetchval(
        "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) "
        "from pg_stat_xact_user_tables where relid = 'inbox.message'::regclass"
    )
    return number


@pytest.mark.parametrize("analyzed", [False, True], ids=["before the server has looked", "after"])
@pytest.mark.parametrize("kept_session", [True, False], ids=["old session", "new session"])
async def test_no_statement_of_an_attempt_reads_a_whole_table(
    database: Database, session: asyncpg.Connection[Any], analyzed: bool, kept_session: bool
) -> None:
    if analyzed:
        await database.execute("analyze")
    connection = session if kept_session else await database.connect()
    found = await play(connection, uuid4())
    partitions = {row["name"] for row in await database.fetch("select name from inbox.partitions_of('receipt')")}
    by_index = {table for (table, kind), number in found.items() if kind == "idx_scan" and number}
    assert by_index >= {"message", "attempt", "member"}
    assert by_index & partitions
    empty = {name for name in partitions if not await database.fetchval(f"select count(*) from inbox.{name}")}
    whole = {table: number for (table, kind), number in found.items() if kind == "seq_scan" and table not in empty}
    assert whole == {}
