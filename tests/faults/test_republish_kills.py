"""SIGKILL where a message ends, and where what it owes then is published: one record, one effect, nothing lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from inbox.points import REPUBLISH_POINTS
from tests.support.databases import Database
from tests.support.operators import replayed
from tests.support.owing import dead_letters, ended, nothing_on_record, on_record
from tests.support.process import StartFleet
from tests.support.service import Service
from tests.support.vhosts import Vhost

Rounds = Callable[[int, int], int]

EACH = 3
"""Messages that owe something when a process dies, all of them published at the same time."""
QUICK = {"members": {"heartbeat": "200ms", "expiry": "1s"}}
"""The next process takes the duty of one that has died when its heartbeat has expired."""
ENDING_POINTS = ("start.sent", "start.committed", "failure.sent", "failure.committed", "ack.before", "ack.after")


@pytest.mark.parametrize("point", REPUBLISH_POINTS)
async def test_a_kill_at_a_named_point_of_republishing_loses_nothing_and_doubles_no_effect(
    point: str, tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, rounds: Rounds
) -> None:
    # Each kill may take started attempts with it, which must not end anything here.
    patient = {"work": {"max_attempts": 100, "max_aborts": 100}}
    service = Service(tmp_path, database, vhost, fleet, consumers=patient, tables=QUICK)
    await service.prepare()
    batches = [[f"message-{number}-{each}" for each in range(EACH)] for number in range(rounds(3, 10))]
    ids = [each for batch in batches for each in batch]
    keys = []
    for batch in batches:
        keys.append(await on_record(database, *batch))
        await service.spawn(kill_at=point).exited(-signal.SIGKILL, within_s=60)
    between = await service.start()
    await ended(service, len(ids))
    letters = await dead_letters(service)
    assert letters.keys() == set(ids)
    # One that was under way when its process died is sent again, once for each such death.
    assert max(letters.values()) <= 1 + len(batches)
    await service.stopped(between)

    for batch_keys in keys:
        await replayed(database, *batch_keys)
        await service.spawn(kill_at=point).exited(-signal.SIGKILL, within_s=60)
    last = await service.start()
    await nothing_on_record(service, within_s=60)
    await service.settled()
    await service.exact(ids)
    assert await dead_letters(service) == {}
    await service.stopped(last)
    await service.at_rest()


@pytest.mark.parametrize("point", ENDING_POINTS)
async def test_a_kill_where_a_message_ends_leaves_one_record_of_it_and_its_dead_letter(
    point: str, tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, rounds: Rounds
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 2}}, tables=QUICK)
    await service.prepare()
    ids: list[str] = []
    for number in range(rounds(3, 20)):
        batch = [f"failing-{number}-{each}" for each in range(EACH)]
        await service.publish(*batch, copies=2, fail_in=[-1])
        ids += batch
        await service.spawn(kill_at=point).exited(-signal.SIGKILL, within_s=60)
    last = await service.start()
    await ended(service, len(ids), within_s=60)
    await service.settled()
    await service.exact([], terminal=dict.fromkeys(ids, "exhausted"))
    records = await database.fetch("select message_id, generation from inbox.exhaustion")
    assert sorted(tuple(row) for row in records) == sorted((each, 1) for each in ids)
    assert (await dead_letters(service)).keys() == set(ids)
    charged = await database.fetch("select key from inbox.attempt where charged group by key having count(*) <> 2")
    assert charged == [], "a message ended without its budget being spent"
    await service.stopped(last)
    await service.at_rest()
