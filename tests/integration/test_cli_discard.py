"""`inbox-fleet messages discard` while others work: what is discarded is what was counted, as it was counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumers.cli.exits import Exit
from inbox.states import State
from tests.support.databases import Database
from tests.support.inboxes import Handler, StartProcess, ended, message
from tests.support.operators import ONCE, WHY, Desk, exhausted, rejected, replayed, row_of, waiting

REASON = ("--reason", WHY["reason"], "--by", WHY["by_whom"])
DISCARD = ("messages", "discard", "--consumer", "billing", "--all", *REASON)


@pytest.fixture
def desk(tmp_path: Path, database: Database) -> Desk:
    return Desk(tmp_path, database)


async def test_what_ends_while_the_question_is_open_is_not_discarded(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    (counted,) = await exhausted(one, "m-1")
    done = await desk.asked(*DISCARD, "-o", "table", meanwhile=lambda: exhausted(one, "m-2"))
    assert "Discard 1 message?" in done.stderr
    assert done.stdout == "1 message discarded, 0 left as they are\n"
    assert (await row_of(database, counted.key)).state is State.DISCARDED
    assert (await row_of(database, message("m-2").key)).state is State.EXHAUSTED


async def test_what_was_replayed_and_ended_again_while_the_question_was_open_is_left_as_it_is(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    again, still = await exhausted(one, "m-1", "m-2")

    async def replayed_and_failed_again() -> None:
        await replayed(database, again.key)
        ended(await one.attempt(again, Handler(ValueError("no"), writes=False), ONCE))

    done = await desk.asked(*DISCARD, meanwhile=replayed_and_failed_again, code=Exit.PARTIAL)
    *each, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["message_id"], line["was"], line["answer"]) for line in each] == [
        ("m-1", "exhausted", "changed"),
        ("m-2", "exhausted", "discarded"),
    ]
    assert (last["discarded"], last["left_as_they_are"]) == (1, 1)
    row = await row_of(database, again.key)
    assert (row.state, row.generation) == (State.EXHAUSTED, 2)
    assert (await row_of(database, still.key)).state is State.DISCARDED


async def test_one_that_is_named_and_ends_while_the_question_is_open_is_left_as_it_is(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    (named,) = await waiting(one, "m-1")

    async def ends() -> None:
        await database.execute("update inbox.message set due_at = inbox.clock()")
        ended(await one.attempt(named, Handler(ValueError("no"), writes=False), ONCE, redelivered=True))

    done = await desk.asked("messages", "discard", "m-1", *REASON, "-o", "table", meanwhile=ends, code=Exit.FAILED)
    assert done.stdout == "0 messages discarded, 1 left as they are\n"
    assert f"not discarded: m-1 ({named.key}): changed" in done.stderr
    assert (await row_of(database, named.key)).state is State.EXHAUSTED


async def test_of_two_who_discard_the_same_messages_the_later_one_is_told_that_it_was_not_them(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    await exhausted(one, "m-1", "m-2")
    await rejected(one, "m-3")
    theirs = ("messages", "discard", "--consumer", "billing", "--since", "1h", "-o", "table", "--reason", "theirs")
    done = await desk.asked(
        *theirs, meanwhile=lambda: desk.run(*theirs[:-1], "ours", "--by", "ann@desk", "--yes"), code=Exit.FAILED
    )
    assert done.stdout == "0 messages discarded, 3 left as they are\n"
    assert done.stderr.count("): changed") == 3
    noted = await database.fetch("select by_whom, reason from inbox.history where event = 'discarded'")
    assert [tuple(each) for each in noted] == [("ann@desk", "ours")] * 3


async def test_nothing_is_discarded_when_the_answer_is_no(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    (asked_about,) = await exhausted(one, "m-1")
    await desk.asked(*DISCARD, meanwhile=lambda: exhausted(one, "m-2"), answer="n", code=Exit.FAILED)
    assert (await row_of(database, asked_about.key)).state is State.EXHAUSTED
