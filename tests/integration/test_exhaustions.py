"""What operators see of exhaustion records, and what their word about one does."""

from __future__ import annotations

from uuid import uuid4

import pytest

from inbox import exhaustions
from inbox.exhaustions import Answer, ExhaustionState, Unacknowledged
from tests.support.databases import Database
from tests.support.exhaustions import exhausted_record, exhausted_records
from tests.support.inboxes import Handler, StartProcess, message


async def test_a_message_that_ends_exhausted_leaves_one_record_with_its_last_error(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    record_id = await exhausted_record(one)
    async with one.pool.acquire() as connection:
        (found,) = await exhaustions.find(connection)
    assert (found.id, found.key, found.consumer, found.message_id) == (record_id, message().key, "billing", "m-1")
    assert (found.generation, found.number, found.reason) == (1, 1, "attempts")
    assert (found.error_class, found.error_text, found.body_bytes) == ("ValueError", "no", len(message().body))
    assert (found.state, found.tries, found.acknowledged_by) == (ExhaustionState.WAITING, 0, None)


async def test_records_come_in_pages_oldest_first(process: StartProcess) -> None:
    one = await process()
    ids = await exhausted_records(one, "a", "b", "c")
    async with one.pool.acquire() as connection:
        first = await exhaustions.find(connection, limit=2)
        rest = await exhaustions.find(connection, after=first[-1], limit=2)
    assert [record.id for record in first + rest] == ids


async def test_records_are_found_by_consumer_state_id_and_message(process: StartProcess, database: Database) -> None:
    one = await process()
    first, second = await exhausted_records(one, "a", "b")
    await database.execute("update inbox.exhaustion set stuck = true where id = $1", first)
    async with one.pool.acquire() as connection:
        find = exhaustions.find
        assert [r.id for r in await find(connection, states=[ExhaustionState.STUCK])] == [first]
        assert [r.id for r in await find(connection, states=[ExhaustionState.WAITING])] == [second]
        assert [r.id for r in await find(connection, ids=[second])] == [second]
        assert [r.id for r in await find(connection, key=message("a").key)] == [first]
        assert [r.id for r in await find(connection, consumer="billing")] == [first, second]
        assert await find(connection, consumer="shipping") == []
        counted = await exhaustions.count(connection, ["billing", "shipping"])
    assert counted == {"billing": Unacknowledged(records=2, stuck=1), "shipping": Unacknowledged()}


async def test_an_acknowledgement_needs_a_name_and_is_given_once(process: StartProcess) -> None:
    one = await process()
    record_id, unknown = await exhausted_record(one), uuid4()
    async with one.pool.acquire() as connection:
        with pytest.raises(ValueError, match="name"):
            await exhaustions.acknowledge(connection, [record_id], by_whom=" ")
        first = await exhaustions.acknowledge(connection, [record_id, unknown], by_whom="ann")
        assert first == {record_id: Answer.DONE, unknown: Answer.MISSING}
        assert await exhaustions.acknowledge(connection, [record_id], by_whom="bob") == {record_id: Answer.ACKNOWLEDGED}
        assert await exhaustions.retry(connection, [record_id]) == {record_id: Answer.ACKNOWLEDGED}
        assert await exhaustions.find(connection) == []
        (found,) = await exhaustions.find(connection, states=[ExhaustionState.ACKNOWLEDGED])
    assert found.acknowledged_by == "ann"


async def test_a_record_that_somebody_works_on_is_busy(process: StartProcess, database: Database) -> None:
    one = await process()
    record_id = await exhausted_record(one)
    working = await database.connect()
    async with working.transaction():
        await working.execute("select from inbox.exhaustion for update")
        async with one.pool.acquire() as connection:
            assert await exhaustions.acknowledge(connection, [record_id], by_whom="ann") == {record_id: Answer.BUSY}
            assert await exhaustions.retry(connection, [record_id]) == {record_id: Answer.BUSY}
    await working.close()


async def test_a_record_may_be_tried_anew_from_the_first_try_on(process: StartProcess, database: Database) -> None:
    one = await process()
    record_id = await exhausted_record(one)
    await database.execute(
        "update inbox.exhaustion set stuck = true, tries = 3, aborts = 2, suspect = true, due_at = due_at + '1 h'"
    )
    async with one.pool.acquire() as connection:
        assert await exhaustions.retry(connection, [record_id]) == {record_id: Answer.DONE}
        (found,) = await exhaustions.find(connection)
    assert (found.state, found.tries, found.aborts) == (ExhaustionState.WAITING, 0, 0)
    assert await database.fetchval("select suspect and due_at <= inbox.clock() from inbox.exhaustion")


async def test_a_message_that_did_not_end_exhausted_leaves_no_record(process: StartProcess, database: Database) -> None:
    one = await process()
    await one.attempt(message(), Handler())
    assert await database.fetchval("select count(*) from inbox.exhaustion") == 0
