"""`inbox-fleet messages` as a process on a real database: what it shows, what it changes, and how it exits."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from consumers.cli.exits import Exit
from inbox import Message
from inbox.oversize import KEPT_BYTES
from inbox.states import State
from tests.support.databases import Database
from tests.support.inboxes import NO_PAUSE, Handler, StartProcess, message, standing, succeed
from tests.support.operators import WHY, Desk, exhausted, many_exhausted, rejected, row_of, waiting

REASON = ("--reason", WHY["reason"], "--by", WHY["by_whom"])
HOSTILE = {
    "spaces": "a message  with\tspaces ",
    "newlines": "one\ntwo\r\nthree",
    "a terminal's orders": "\x1b[2J\x1b]0;owned\x07red\x9b31m",
    "text from right to left": "abc\u202egpj.exe",
    "emoji": "order-🧾-👩‍👩‍👧",
    "a leading dash": "--all",
    "length": "x" * 255,
    "a line separator": "a\u2028b\x85c",
    "markup": "[red]not red[/red] {0} %s $1 ';--",
}


@pytest.fixture
def desk(tmp_path: Path, database: Database) -> Desk:
    return Desk(tmp_path, database)


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["message_id"] for line in lines]


async def test_messages_are_listed_by_each_condition(process: StartProcess, database: Database, desk: Desk) -> None:
    one = await process()
    await exhausted(one, "e-1")
    await exhausted(one, "e-2", consumer="audit", error=KeyError("x"))
    await rejected(one, "r-1")
    await waiting(one, "w-1")

    async def listed(*conditions: str) -> list[str]:
        return ids(await desk.lines("messages", "list", "--output", "json", *conditions))

    assert await listed() == ["e-1", "e-2", "r-1", "w-1"]
    assert await listed("--consumer", "audit") == ["e-2"]
    assert await listed("--state", "rejected", "--state", "waiting") == ["r-1", "w-1"]
    assert await listed("--error-class", "KeyError") == ["e-2"]
    assert await listed("--type", "order.cancelled") == []
    assert await listed("--since", "1h", "--limit", "2") == ["e-1", "e-2"]
    assert await listed("--until", "1h") == []
    ended = (await row_of(database, message("e-1").key)).changed_at
    assert await listed("--until", ended.isoformat()) == []
    assert await listed("--since", ended.astimezone(UTC).replace(tzinfo=None).isoformat()) == await listed()


async def test_a_list_is_a_table_for_people_and_one_object_a_line_for_scripts(
    process: StartProcess, desk: Desk
) -> None:
    (failed,) = await exhausted(await process(), "m-1")
    table = (await desk.run("messages", "list")).stdout
    assert table.split()[:4] == ["last", "change", "state", "consumer"]
    (row,) = [line.split() for line in table.splitlines() if str(failed.key) in line]
    assert row[2:] == ["exhausted", "billing", "m-1", "order.placed", "1", "ValueError", str(failed.key)]
    (line,) = await desk.lines("messages", "list", "--output", "json")
    assert (line["key"], line["state"], line["attempts"]) == (str(failed.key), "exhausted", 1)
    assert "body" not in line


async def test_a_list_says_when_it_is_empty_and_when_there_is_more(database: Database, desk: Desk) -> None:
    assert "no message" in (await desk.run("messages", "list")).stderr
    await many_exhausted(database, 1_203)
    few = await desk.run("messages", "list", "--limit", "3", "--output", "json")
    assert len(few.stdout.splitlines()) == 3 and "more than 3" in few.stderr
    whole = await desk.run("messages", "list", "--limit", "1203", "--output", "json")
    assert [json.loads(line)["message_id"] for line in whole.stdout.splitlines()] == [f"m-{n}" for n in range(1, 1_204)]
    assert whole.stderr == ""


async def test_a_consumer_that_the_configuration_does_not_know_is_asked_for_as_it_is(
    process: StartProcess, desk: Desk
) -> None:
    await exhausted(await process(), "m-1", consumer="gone")
    done = await desk.run("messages", "list", "--consumer", "gone", "--output", "json")
    assert json.loads(done.stdout)["consumer"] == "gone"
    assert "has no consumer 'gone'" in done.stderr


async def test_a_story_is_told_in_its_order_without_bodies_and_traces(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    (failed,) = await exhausted(await process(), "m-1", body=b"secret body")
    await desk.run("messages", "replay", "m-1", *REASON)
    told = (await desk.run("messages", "show", "m-1")).stdout
    lines = told.splitlines()
    assert lines[1:3] == [f"key         {failed.key}", "consumer    billing"]
    assert "state       waiting" in lines and "generation  2" in lines
    assert "a copy of it is owed to its queue" in told
    order = ["attempt 1 failed", "exhausted", "replayed"]
    assert [word for line in lines for word in order if f"Z  {word}  " in line] == order
    assert "ValueError: no" in told and "charged" in told and "pid" in told
    assert f"by {WHY['by_whom']}" in told and WHY["reason"] in told
    assert "secret body" not in told and "Traceback" not in told
    traced = await desk.run("messages", "show", "--trace", str(failed.key))
    assert "    ValueError: no" in traced.stdout.splitlines()


async def test_a_story_for_scripts_is_one_object(process: StartProcess, desk: Desk) -> None:
    (failed,) = await exhausted(await process(), "m-1")
    told = json.loads((await desk.run("messages", "show", "m-1", "--output", "json")).stdout)
    assert (told["key"], told["state"], told["type"]) == (str(failed.key), "exhausted", "order.placed")
    (attempt,) = told["attempts"]
    assert (attempt["outcome"], attempt["error_text"], "error_trace" in attempt) == ("failed", "no", False)
    assert told["exhaustions"][0]["state"] == "waiting"
    traced = json.loads((await desk.run("messages", "show", "m-1", "--output", "json", "--trace")).stdout)
    assert traced["attempts"][0]["error_trace"].endswith("ValueError: no\n")


async def test_a_message_that_was_processed_at_once_is_found_by_source_or_key(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    sent = message("m-1")
    await (await process()).attempt(sent, Handler())
    for named in (
        ("m-1", "--source", "/shop"),
        ("m-1", "--source", "/shop", "--consumer", "billing"),
        (str(sent.key),),
    ):
        told = (await desk.run("messages", "show", *named)).stdout
    assert "state       processed" in told and "effects and receipt are committed" in told
    missing = await desk.run("messages", "show", "m-1", code=Exit.NOT_FOUND)
    assert missing.stdout == "" and "--source" in missing.stderr
    await desk.run("messages", "show", "m-1", "--source", "/other", code=Exit.NOT_FOUND)


async def test_a_message_that_failed_before_it_was_processed_is_told_whole(process: StartProcess, desk: Desk) -> None:
    one, handler = await process(), Handler(ValueError("no"), succeed)
    await one.attempt(message(), handler, NO_PAUSE)
    await one.attempt(message(), handler, NO_PAUSE, redelivered=True)
    told = (await desk.run("messages", "show", "m-1")).stdout
    assert told.index("attempt 1 failed") < told.index("attempt 2 processed") < told.index("effects and receipt")


async def test_an_id_of_several_messages_lists_them_and_changes_none(process: StartProcess, desk: Desk) -> None:
    one = await process()
    first, second = *(await exhausted(one, "m-1")), *(await exhausted(one, "m-1", consumer="audit"))
    for command in (("show", "m-1"), ("replay", "m-1", *REASON), ("discard", "m-1", *REASON)):
        refused = await desk.run("messages", *command, code=Exit.USAGE)
        assert str(first.key) in refused.stderr and str(second.key) in refused.stderr
    told = await desk.run("messages", "show", "m-1", "--consumer", "audit")
    assert str(second.key) in told.stdout


async def test_bytes_are_written_to_a_new_file_alone(process: StartProcess, desk: Desk, database: Database) -> None:
    sent = b"\x00\xff not text"
    await exhausted(await process(), "m-1", body=sent)
    await desk.run("messages", "show", "m-1", "--body", "body.bin")
    assert (desk.folder / "body.bin").read_bytes() == sent
    again = await desk.run("messages", "show", "m-1", "--body", "body.bin", code=Exit.USAGE)
    assert "not written over" in again.stderr
    await (await process("other")).attempt(message("m-2"), Handler(message_id="m-2"))
    gone = ("messages", "show", "m-2", "--source", "/shop", "--body", "gone.bin")
    assert "not kept" in (await desk.run(*gone, code=Exit.FAILED)).stderr
    assert not (desk.folder / "gone.bin").exists()


async def test_a_message_that_was_too_large_is_told_with_what_is_on_record_and_where_the_whole_is(
    process: StartProcess, desk: Desk
) -> None:
    async def keep(whole: Message) -> None:
        """Take it, as the broker does."""

    sent = message("m-1", body=b"0123456789" * 30_000)
    await (await process()).attempt(sent, Handler(), keep=keep)
    told = (await desk.run("messages", "show", "m-1")).stdout
    digest = sha256(sent.body).hexdigest()
    assert "state       rejected" in told and "it was too large to be begun" in told
    assert f"300000 bytes, the first {KEPT_BYTES} on record; the whole went to billing.dead, sha256 {digest}" in told
    assert "cannot be replayed" in told
    row = json.loads((await desk.run("messages", "show", "m-1", "-o", "json")).stdout)["row"]
    assert (row["body_bytes"], row["kept_bytes"], row["body_sha256"]) == (300_000, KEPT_BYTES, digest)
    saved = await desk.run("messages", "show", "m-1", "--body", "body.bin", code=Exit.PARTIAL)
    assert "has but the beginning" in saved.stderr and "billing.dead" in saved.stderr
    assert (desk.folder / "body.bin").read_bytes() == sent.body[:KEPT_BYTES]
    *_, item, ended = await desk.lines("messages", "replay", "m-1", *REASON, code=Exit.FAILED)
    assert item["outcome"] == "skipped" and "too large" in item["detail"]
    assert ended["skipped"] == 1


async def test_no_id_breaks_a_command_or_reaches_a_terminal_as_it_is(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    for each in HOSTILE.values():
        await exhausted(one, each, type=each, error=ValueError(each), source=each)
    listed = await desk.lines("messages", "list", "--output", "json")
    assert ids(listed) == list(HOSTILE.values())
    keys = [each["key"] for each in listed]
    table = (await desk.run("messages", "list")).stdout.splitlines()
    assert [key for line in table for key in keys if key in line] == keys
    for key, each in zip(keys, HOSTILE.values(), strict=True):
        assert key in (await desk.run("messages", "show", "--trace", "--", each)).stdout
    told = json.loads((await desk.run("messages", "show", "-o", "json", keys[2])).stdout)
    assert told["message_id"] == HOSTILE["a terminal's orders"] == told["attempts"][0]["error_text"]
    await desk.run("messages", "replay", "--dry-run", "--output", "table", "--", *HOSTILE.values())
    frozen, *items, ended = await desk.lines("messages", "replay", *REASON, "--", *HOSTILE.values())
    assert ids([each for each in items if each["event"] == "item"]) == list(HOSTILE.values())
    assert ended["replayed"] == len(HOSTILE)
    await desk.run("replays", "show", frozen["id"])
    await desk.run("messages", "discard", *REASON, "-o", "table", "--", *HOSTILE.values())
    await desk.run("messages", "show", "--", *list(HOSTILE.values())[2:3])
    await desk.run("messages", "replay", *REASON, "--", *HOSTILE.values(), code=Exit.FAILED)
    for unknown in ("\x1b[2J", "x" * 10_000, "\n\n", "💥"):
        await desk.run("messages", "show", "--", unknown, code=Exit.NOT_FOUND)
        await desk.run("messages", "discard", *REASON, "--", unknown, code=Exit.NOT_FOUND)
    await desk.run("exhausted", "list")


async def test_a_dry_run_says_how_many_and_which_first_and_changes_nothing(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    await exhausted(one, *(f"m-{number}" for number in range(7)))
    chosen = ("messages", "replay", "--dry-run", "--consumer", "billing", "--all")
    (said,) = await desk.lines(*chosen)
    assert (said["event"], said["total"], said["states"]) == ("dry_run", 7, {"exhausted": 7})
    assert ids(said["first"]) == [f"m-{number}" for number in range(5)]
    assert (await desk.lines(*chosen, "--limit", "3"))[0]["total"] == 3
    told = await desk.run(*chosen, "--output", "table")
    assert told.stdout == "" and "7 messages to be replayed (7 exhausted)" in told.stderr
    assert await database.fetchval("select count(*) from inbox.replay") == 0
    assert (await desk.lines("messages", "discard", *chosen[2:]))[0]["total"] == 7
    assert (await row_of(database, message("m-0").key)).state is State.EXHAUSTED


async def test_a_replay_by_conditions_is_of_one_consumer_and_says_each_item(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    await exhausted(one, "m-1", "m-2")
    await exhausted(one, "m-3", consumer="audit")
    await rejected(one, "m-4")
    frozen, *items, ended = await desk.lines("messages", "replay", "--consumer", "billing", "--all", *REASON)
    assert (frozen["event"], frozen["total"], frozen["by_whom"]) == ("frozen", 2, WHY["by_whom"])
    assert [(each["message_id"], each["outcome"]) for each in items if each["event"] == "item"] == [
        ("m-1", "replayed"),
        ("m-2", "replayed"),
    ]
    assert (ended["event"], ended["state"], ended["replayed"]) == ("ended", "finished", 2)
    assert (await row_of(database, message("m-3", consumer="audit").key)).state is State.EXHAUSTED
    assert (await row_of(database, message("m-4").key)).state is State.REJECTED
    assert await database.fetchval("select reason from inbox.replay") == WHY["reason"]


async def test_a_replay_by_ids_leaves_out_what_has_not_ended_and_says_so(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    await exhausted(one, "m-1")
    await waiting(one, "w-1")
    done = await desk.run("messages", "replay", "m-1", "w-1", *REASON, code=Exit.PARTIAL)
    assert f"w-1 ({message('w-1').key}) is waiting and is tried again by itself" in done.stderr
    assert (await row_of(database, message("m-1").key)).generation == 2
    alone = await desk.run("messages", "replay", "w-1", *REASON, code=Exit.FAILED)
    assert "is waiting" in alone.stderr and alone.stdout == ""


async def test_what_is_not_there_is_not_found_and_nothing_else_is_done(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    await exhausted(await process(), "m-1")
    for command in ("replay", "discard"):
        for chosen in (("m-1", "m-2", str(uuid4())), ("--consumer", "audit", "--all")):
            done = await desk.run("messages", command, *chosen, *REASON, code=Exit.NOT_FOUND)
            assert done.stdout == ""
    assert (await row_of(database, message("m-1").key)).state is State.EXHAUSTED


async def test_a_replay_that_leaves_items_out_is_partial_and_says_where_they_are(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    await exhausted(await process(), "m-1", "m-2")
    holder = await database.connect()
    await holder.execute("select pg_advisory_lock(inbox.lock_id($1))", message("m-1").key)
    done = await desk.run("messages", "replay", "m-1", "m-2", *REASON, "-o", "table", code=Exit.PARTIAL)
    await holder.close()
    assert "1 replayed, 1 skipped" in done.stdout
    assert "inbox-fleet replays show" in done.stderr


async def test_a_discard_says_each_message_and_who_and_why(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    one = await process()
    await exhausted(one, "m-1")
    await rejected(one, "m-2")
    await waiting(one, "w-1")
    done = await desk.lines("messages", "discard", "--consumer", "billing", "--since", "1h", *REASON)
    assert [(each["message_id"], each["was"], each["answer"]) for each in done[:-1]] == [
        ("m-1", "exhausted", "discarded"),
        ("m-2", "rejected", "discarded"),
    ]
    assert (done[-1]["discarded"], done[-1]["left_as_they_are"]) == (2, 0)
    assert (await row_of(database, message("w-1").key)).state is State.WAITING
    await desk.run("messages", "discard", "w-1", *REASON)
    told = (await desk.run("messages", "show", "w-1")).stdout
    assert f"discarded  from waiting by {WHY['by_whom']}: {WHY['reason']}" in told
    handler = Handler(message_id="w-1")
    await one.attempt(message("w-1"), handler, NO_PAUSE, redelivered=True)
    assert handler.calls == [] and (await standing(database, message("w-1"))).effects == 0


async def test_a_discard_goes_through_more_than_it_reads_at_once(database: Database, desk: Desk) -> None:
    await many_exhausted(database, 1_210)
    *messages, ended = await desk.lines(
        "messages", "discard", "--consumer", "audit", "--all", "--limit", "600", *REASON
    )
    assert len({each["key"] for each in messages}) == 600 == ended["discarded"]
    states = await database.fetch("select state, count(*) from inbox.message group by state order by state")
    assert [tuple(row) for row in states] == [("discarded", 600), ("exhausted", 610)]


async def test_what_somebody_works_on_is_not_discarded_and_said(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    await exhausted(await process(), "m-1", "m-2")
    holder = await database.connect()
    await holder.execute("select pg_advisory_lock(inbox.lock_id($1))", message("m-1").key)
    done = await desk.run("messages", "discard", "m-1", "m-2", *REASON, "--output", "table", code=Exit.PARTIAL)
    await holder.close()
    assert "contended" in done.stderr and "1 message discarded, 1 left" in done.stdout


async def test_who_does_it_is_the_user_and_the_host_unless_said(
    process: StartProcess, database: Database, desk: Desk
) -> None:
    await exhausted(await process(), "m-1")
    await desk.run("messages", "replay", "m-1", "--reason", "because")
    by_whom = await database.fetchval("select by_whom from inbox.replay")
    user, _, host = by_whom.partition("@")
    assert user and host


async def test_times_are_those_of_the_database(process: StartProcess, database: Database, desk: Desk) -> None:
    await exhausted(await process(), "m-1")
    await database.execute("update inbox.message set changed_at = changed_at - interval '3 h'")
    assert await desk.lines("messages", "list", "-o", "json", "--since", "2h") == []
    (line,) = await desk.lines("messages", "list", "-o", "json", "--since", "4h", "--until", "2h")
    assert datetime.fromisoformat(line["changed_at"]).tzinfo is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--since", "1h", "--until", "2h"),
        ("list", "--since", "99999999d"),
        ("replay", "--all", *REASON),
        ("replay", "--consumer", "billing", "--state", "waiting", *REASON),
        ("discard", "--consumer", "billing", "--state", "attempting", *REASON),
    ],
    ids=" ".join,
)
async def test_what_can_mean_nothing_is_wrong_use(arguments: tuple[str, ...], desk: Desk) -> None:
    done = await desk.run("messages", *arguments, code=Exit.USAGE)
    assert done.stdout == "" and "Error: " in done.stderr
