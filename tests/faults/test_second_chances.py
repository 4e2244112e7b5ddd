"""The operators' way from end to end: messages end, the cause is mended, a command replays them on a running fleet.

Commands and fleet are processes of their own; what happened is asked of `messages show`, as an operator would.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.support.command import inbox_fleet
from tests.support.databases import Database
from tests.support.owing import dead_letters, ended, nothing_on_record
from tests.support.process import StartFleet
from tests.support.service import Service
from tests.support.supervisor import supervised
from tests.support.vhosts import Vhost

REASON = "the row is there now"
WHY = ("--reason", REASON, "--by", "ann@desk")
MAX_ATTEMPTS = 2
UNTIL_FIXED = "select 1 / count(*)::integer from fixed"


@pytest_asyncio.fixture
async def service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """A service whose messages may fail for want of a row that an operator adds."""
    consumers = {"work": {"max_attempts": MAX_ATTEMPTS, "pacing": ["0s"]}}
    tables = {"members": {"heartbeat": "200ms", "expiry": "1s"}}
    made = Service(tmp_path, database, vhost, fleet, consumers=consumers, tables=tables)
    await made.prepare()
    await database.execute("create table fixed (id integer)")
    return made


async def command(service: Service, *arguments: str) -> str:
    done = await inbox_fleet(
        *arguments, folder=service.config.parent, environ={"DATABASE_URL": service.database.url}, within_s=60.0
    )
    assert done.code == 0, f"{arguments}: exit code {done.code}\n{done.stdout}{done.stderr}"
    return done.stdout


async def replay(service: Service, *arguments: str) -> dict[str, Any]:
    """Replay by the command, and return its last word."""
    written = await command(service, "messages", "replay", *arguments, *WHY, "--output", "json")
    last: dict[str, Any] = json.loads(written.splitlines()[-1])
    return last


async def shown(service: Service, message_id: str) -> tuple[dict[str, str], list[str]]:
    """Return the head of what `messages show` tells, and its lines of the time, without the times."""
    head, _, told = (await command(service, "messages", "show", message_id, "--source", "tests")).partition("\n\n")
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in head.splitlines())
    lines = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  ", "", line) for line in told.splitlines() if line]
    return facts, lines


def in_order(lines: list[str], *patterns: str) -> bool:
    """Whether a line for each pattern stands among the lines, in this order."""
    rest = iter(lines)
    return all(any(re.search(pattern, line) for line in rest) for pattern in patterns)


async def test_what_was_exhausted_is_mended_replayed_and_processed_once_and_its_story_is_told_whole(
    service: Service,
) -> None:
    process = await service.start()
    bad, good = [f"bad-{number}" for number in range(5)], ["good-1", "good-2"]
    await service.publish(*bad, sql=UNTIL_FIXED)
    await service.publish(*good)
    await ended(service, len(bad))
    facts, lines = await shown(service, "bad-0")
    assert (facts["state"], facts["generation"]) == ("exhausted", "1")
    assert facts["next"] == "It has ended; nothing is tried until it is replayed."
    failed = [rf"^attempt {number} failed .* charged.*DivisionByZeroError" for number in (1, 2)]
    assert in_order(lines, *failed, r"^exhausted  its attempts in generation 1 are used up")

    await service.database.execute("insert into fixed values (1)")
    said = await replay(service, "--consumer", "work", "--error-class", "DivisionByZeroError")
    assert (said["state"], said["replayed"], said["total"]) == ("finished", len(bad), len(bad))
    await nothing_on_record(service)
    await service.settled()
    await service.exact([*bad, *good])
    assert service.starts() == {**dict.fromkeys(bad, MAX_ATTEMPTS + 1), **dict.fromkeys(good, 1)}
    facts, lines = await shown(service, "bad-0")
    assert facts["state"] == "processed"
    assert in_order(
        lines,
        *failed,
        r"^exhausted ",
        rf"^replayed  from exhausted into generation 2 by ann@desk, by job {said['id']}: {REASON}$",
        r"^attempt 1 processed ",
        r"^processed  effects and receipt are committed$",
    ), lines
    # They were dead before they were replayed; that is not taken back.
    assert await dead_letters(service) == dict.fromkeys(bad, 1)
    await service.stopped(process)
    await service.at_rest()


async def test_a_message_that_killed_its_process_each_time_runs_alone_after_its_replay_and_costs_nobody_anything(
    service: Service,
) -> None:
    mended = service.file("mended")
    good = [f"good-{number}" for number in range(30)]
    async with supervised(service) as supervisor:
        await service.publish("deadly", kills_without=str(mended))
        await ended(service, 1, within_s=90)
        died = supervisor.deaths
        assert set(died) == {-signal.SIGKILL}
        mended.touch()
        # It comes back among others, which are at work in all lanes.
        await service.publish(*good, sleep_s=0.2)
        said = await replay(service, "deadly")
        assert said["replayed"] == 1
        await nothing_on_record(service)
        await service.settled(60)
        assert supervisor.deaths == died
    await service.exact(["deadly", *good])
    facts, lines = await shown(service, "deadly")
    assert facts["state"] == "processed"
    assert in_order(
        lines,
        r"^attempt \d crashed .* charged, alone in its process: ProcessDied",
        r"^exhausted ",
        rf"^replayed .* by ann@desk.*: {REASON}$",
        r"^attempt 1 processed .*alone in its process",
        r"^processed ",
    ), lines
    charged = await service.database.fetch("select distinct message_id from inbox.history where event = 'processed'")
    assert {row["message_id"] for row in charged} == {"deadly"}, "another message came to be on record"
    assert [service.starts()[each] for each in good] == [1] * len(good)
    await service.stopped(supervisor.running)
    await service.at_rest()


async def test_a_replay_of_messages_whose_copies_come_from_a_backup_at_the_same_time_has_one_effect_each(
    service: Service,
) -> None:
    process, other = await service.start(), await service.start()
    ids = [f"message-{number}" for number in range(25)]
    await service.publish(*ids, sql=UNTIL_FIXED)
    await ended(service, len(ids))
    await service.database.execute("insert into fixed values (1)")

    async def restore() -> None:
        # All the while that the command replays one after another: before, while and after each of them is.
        while not replaying.done():
            await service.publish(*ids, sql=UNTIL_FIXED)

    replaying = asyncio.create_task(replay(service, "--consumer", "work", "--all", "--rate", "10/s"))
    await asyncio.gather(restore(), replaying)
    assert replaying.result()["replayed"] == len(ids)
    await nothing_on_record(service, within_s=60)
    await service.settled(60)
    await service.exact(ids)
    assert service.starts() == dict.fromkeys(ids, MAX_ATTEMPTS + 1)
    absorbed = [event for each in (process, other) for event in each.events("attempt.settled")]
    assert {"absorbed", "duplicate"} <= {event["outcome"] for event in absorbed}
    replayed = await service.database.fetch("select count(*) from inbox.history where event = 'replayed' group by key")
    assert [row["count"] for row in replayed] == [1] * len(ids)
    await service.stopped(process, other)
    await service.at_rest()
