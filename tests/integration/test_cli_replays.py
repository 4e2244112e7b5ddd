"""`inbox-fleet replays` as a process on a real database: jobs are shown, cancelled, interrupted and gone on with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from consumers.cli.exits import Exit
from inbox import replays
from inbox.replays import Replay
from inbox.states import State
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import NO_PAUSE, Handler, StartProcess, message
from tests.support.operators import WHY, Desk, exhausted, frozen, many_exhausted, row_of

REASON = ("--reason", WHY["reason"], "--by", WHY["by_whom"])
ONE_AN_HOUR = ("messages", "replay", "--consumer", "billing", "--all", "--rate", "1/h", *REASON)


@pytest.fixture
def desk(tmp_path: Path, database: Database) -> Desk:
    return Desk(tmp_path, database)


async def standing(database: Database, replay_id: Any) -> Replay:
    return await replays.get(await database.connect(), replay_id)


async def test_jobs_are_listed_and_shown_with_their_items(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    assert "no replay on record" in (await desk.run("replays", "list")).stderr
    one = await process()
    failed, _ = await exhausted(one, "m-1", "m-2")
    *_, ended = await desk.lines("messages", "replay", "--consumer", "billing", "--all", *REASON)
    await one.attempt(failed, Handler(), NO_PAUSE, redelivered=True)
    (line,) = await desk.lines("replays", "list", "--output", "json")
    assert (line["id"], line["state"], line["total"], line["processed"]) == (ended["id"], "finished", 2, 1)
    assert ended["id"] in (await desk.run("replays", "list")).stdout
    shown = json.loads((await desk.run("replays", "show", ended["id"], "--output", "json")).stdout)
    assert [(item["message_id"], item["outcome"], item["fate"]) for item in shown["items"]] == [
        ("m-1", "replayed", "processed"),
        ("m-2", "replayed", None),
    ]
    told = (await desk.run("replays", "show", ended["id"])).stdout
    assert "is finished: 2 replayed" in told and WHY["reason"] in told and "not known yet" in told
    none = json.loads((await desk.run("replays", "show", ended["id"], "--outcome", "failed", "-o", "json")).stdout)
    assert none["items"] == []


async def test_a_job_that_is_not_there_is_not_found(desk: Desk) -> None:
    for command in ("show", "cancel", "resume"):
        assert "there is no replay" in (await desk.run("replays", command, str(uuid4()), code=Exit.NOT_FOUND)).stderr
        await desk.run("replays", command, "7", code=Exit.USAGE)


async def test_an_interrupted_job_is_gone_on_with(process: StartProcess, database: Database, desk: Desk) -> None:
    await exhausted(await process(), "m-1", "m-2")
    made = await frozen(database)
    assert "interrupted" in (await desk.run("replays", "list")).stdout
    *items, ended = await desk.lines("replays", "resume", str(made.id), "--rate", "100/s")
    assert [each["message_id"] for each in items if each["event"] == "item"] == ["m-1", "m-2"]
    assert (ended["state"], ended["rate"]) == ("finished", 100)
    again = await desk.lines("replays", "resume", str(made.id))
    assert [each["event"] for each in again] == ["ended"]


async def test_a_cancelled_job_is_over(process: StartProcess, database: Database, desk: Desk) -> None:
    await exhausted(await process(), "m-1")
    made = await frozen(database)
    assert "cancelled" in (await desk.run("replays", "cancel", str(made.id), "--by", "bob")).stdout
    for command in ("cancel", "resume"):
        assert "is cancelled" in (await desk.run("replays", command, str(made.id), code=Exit.FAILED)).stderr
    assert (await row_of(database, message("m-1").key)).state is State.EXHAUSTED


async def one_is_out(database: Database) -> None:
    async def is_out() -> bool:
        return bool(await database.fetchval("select count(*) from inbox.replay_item where outcome = 'replayed'"))

    await eventually(is_out, 30, what="the first item being replayed")


async def test_ctrl_c_leaves_the_job_in_order_and_says_how_to_go_on(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    await exhausted(await process(), "m-1", "m-2", "m-3")
    async with asyncio.timeout(60), desk.running(*ONE_AN_HOUR) as replay:
        await one_is_out(database)
        replay.interrupt()
        ended = await replay.ended()
    replay_id = await database.fetchval("select id from inbox.replay")
    assert ended.code == Exit.INTERRUPTED
    assert f"inbox-fleet replays resume {replay_id}" in ended.stderr and "Traceback" not in ended.stderr
    left = await standing(database, replay_id)
    assert (left.is_run, left.replayed, left.pending) == (False, 1, 2)
    await desk.run("replays", "resume", str(replay_id), "--rate", "100/s")
    assert (await standing(database, replay_id)).replayed == 3


async def test_a_job_that_somebody_runs_is_not_run_twice_and_can_be_cancelled_from_elsewhere(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    await exhausted(await process(), "m-1", "m-2")
    async with asyncio.timeout(60), desk.running(*ONE_AN_HOUR) as replay:
        await one_is_out(database)
        replay_id = str(await database.fetchval("select id from inbox.replay"))
        busy = await desk.run("replays", "resume", replay_id, code=Exit.FAILED)
        assert f"being run by {WHY['by_whom']} (pid {replay.pid}" in busy.stderr
        await desk.run("replays", "cancel", replay_id)
        ended = await replay.ended()
    assert ended.code == Exit.PARTIAL and "Cancelled by" in ended.stderr


async def test_a_lost_session_leaves_the_job_in_order_and_says_how_to_go_on(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    await exhausted(await process(), "m-1", "m-2")
    async with asyncio.timeout(60), desk.running(*ONE_AN_HOUR) as replay:
        await one_is_out(database)
        await database.terminate_sessions("billing-operator")
        ended = await replay.ended()
    assert ended.code == Exit.UNREACHABLE
    assert "inbox-fleet replays resume" in ended.stderr and "Traceback" not in ended.stderr


async def test_a_job_stops_by_its_bound_and_goes_on_with_another(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    failing = await exhausted(one, *(f"m-{number}" for number in range(4)))
    made = await frozen(database, stop_ratio=0.0)
    async with asyncio.timeout(60), desk.running("replays", "resume", str(made.id), "--rate", "1/h") as replay:
        await one_is_out(database)
        await one.attempt(failing[0], Handler(ValueError("still no"), writes=False), NO_PAUSE, redelivered=True)
        ended = await replay.ended()
    assert ended.code == Exit.PARTIAL
    assert "failed again" in ended.stderr and "replays resume" in ended.stderr
    assert (await standing(database, made.id)).pending == 3
    await desk.run("replays", "resume", str(made.id), "--stop-on-failure-ratio", "0.9", "--rate", "100/s")
    assert (await standing(database, made.id)).replayed == 4


async def test_ten_thousand_messages_are_replayed_one_by_one(database: Database, desk: Desk) -> None:
    await many_exhausted(database, 10_000)
    await database.execute("update inbox.message set consumer = 'billing'")
    lines = await desk.lines("messages", "replay", "--consumer", "billing", "--all", *REASON, within_s=110)
    assert lines[-1]["replayed"] == 10_000
    assert await database.fetchval("select count(*) from inbox.history where event = 'replayed'") == 10_000
    (listed,) = await desk.lines("replays", "list", "--output", "json")
    assert listed["replayed"] == 10_000
