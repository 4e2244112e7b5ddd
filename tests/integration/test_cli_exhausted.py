"""`inbox-fleet exhausted` as a process on a real database."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from consumers.cli.exits import Exit
from tests.support.databases import Database
from tests.support.exhaustions import exhausted_records
from tests.support.inboxes import StartProcess
from tests.support.operators import Desk, exhausted


@pytest.fixture
def desk(tmp_path: Path, database: Database) -> Desk:
    return Desk(tmp_path, database)


async def test_open_records_are_listed_oldest_first(process: StartProcess, database: Database, desk: Desk) -> None:
    assert "no record" in (await desk.run("exhausted", "list")).stderr
    one = await process()
    first, second = await exhausted_records(one, "m-1", "m-2")
    await exhausted(one, "m-3", consumer="audit")
    await database.execute("update inbox.exhaustion set stuck = true where id = $1", second)
    listed = await desk.lines("exhausted", "list", "--output", "json")
    assert [line["message_id"] for line in listed] == ["m-1", "m-2", "m-3"]
    (stuck,) = await desk.lines("exhausted", "list", "-o", "json", "--consumer", "billing", "--state", "stuck")
    assert (stuck["id"], stuck["state"], "body" in stuck) == (str(second), "stuck", False)
    table = await desk.run("exhausted", "list", "--limit", "2")
    assert str(first) in table.stdout and "more than 2" in table.stderr


async def test_records_are_acknowledged_once_and_by_name(process: StartProcess, database: Database, desk: Desk) -> None:
    first, second = await exhausted_records(await process(), "m-1", "m-2")
    done = await desk.run("exhausted", "ack", str(first), "--by", "ann@desk")
    assert done.stdout == "1 of 1 acknowledged\n"
    assert await database.fetchval("select acknowledged_by from inbox.exhaustion where id = $1", first) == "ann@desk"
    again = await desk.run("exhausted", "ack", str(first), str(second), code=Exit.PARTIAL)
    assert "acknowledged before" in again.stderr
    assert await desk.lines("exhausted", "ack", str(second), "-o", "json", code=Exit.FAILED) == [
        {"schema_version": 1, "id": str(second), "answer": "acknowledged"}
    ]
    assert "acknowledged  record" in (await desk.run("messages", "show", "m-1")).stdout


async def test_all_records_of_one_consumer_are_acknowledged(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    await exhausted_records(one, *(f"m-{number}" for number in range(5)))
    await exhausted(one, "other", consumer="audit")
    assert "--consumer" in (await desk.run("exhausted", "ack", "--all", code=Exit.USAGE)).stderr
    assert "5 of 5" in (await desk.run("exhausted", "ack", "--all", "--consumer", "billing")).stdout
    assert await database.fetchval("select count(*) from inbox.exhaustion where acknowledged_at is null") == 1
    await desk.run("exhausted", "ack", "--all", "--consumer", "billing", code=Exit.NOT_FOUND)


async def test_stuck_records_are_tried_anew(process: StartProcess, database: Database, desk: Desk) -> None:
    await exhausted_records(await process(), "m-1", "m-2")
    await database.execute("update inbox.exhaustion set stuck = true, tries = 3 where message_id = 'm-1'")
    assert "1 of 1" in (await desk.run("exhausted", "retry", "--consumer", "billing", "--state", "stuck")).stdout
    assert await database.fetchval("select count(*) from inbox.exhaustion where tries = 0 and not stuck") == 2


async def test_a_record_whose_handler_runs_is_left_to_it(process: StartProcess, database: Database, desk: Desk) -> None:
    (record,) = await exhausted_records(await process(), "m-1")
    working = await database.connect()
    async with working.transaction():
        await working.execute("select from inbox.exhaustion for update")
        for command in ("ack", "retry"):
            busy = await desk.run("exhausted", command, str(record), code=Exit.FAILED)
            assert "its handler is running" in busy.stderr


@pytest.mark.parametrize("command", ["ack", "retry"])
async def test_what_is_not_there_is_not_found_and_what_means_nothing_is_wrong_use(command: str, desk: Desk) -> None:
    await desk.run("exhausted", command, str(uuid4()), code=Exit.NOT_FOUND)
    for wrong in ((), ("m-1",), (str(uuid4()), "--all"), (str(uuid4()), "--consumer", "billing")):
        await desk.run("exhausted", command, *wrong, code=Exit.USAGE)
