"""SIGKILL at every named point of an attempt, with duplicates waiting: one effect for each message, and none lost.

In each round a process dies at the point, and the next one meets what it left. The last process settles the rest.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from inbox.points import POINTS
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.process import StartFleet
from tests.support.relay import RelayBefore
from tests.support.service import Service
from tests.support.vhosts import Vhost
from tests.support.wire import STAMP_ANSWERED, STAMP_SENT

Rounds = Callable[[int, int], int]

# Each kill may take several started attempts with it. Other tests say what that costs; here it must not end anything.
_PATIENT = {"work": {"max_attempts": 100, "max_aborts": 100, "lanes": 3}}

# Messages that make an attempt pass by: a failure is recorded, waits as a requeue first, and in a parking queue then.
_BATCH = 4


async def _service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    service = Service(tmp_path, database, vhost, fleet, consumers=_PATIENT)
    await service.prepare()
    return service


async def _publish_round(service: Service, number: int) -> list[str]:
    plain = [f"plain-{number}-{each}" for each in range(_BATCH)]
    failing = [f"failing-{number}-{each}" for each in range(2)]
    await service.publish(*plain, copies=2)
    await service.publish(*failing, copies=2, fail_in=[1, 2])
    return plain + failing


async def _settle_the_rest(service: Service, ids: list[str]) -> None:
    last = await service.start()
    await service.settled()
    await service.exact(ids)
    await service.stopped(last)
    await service.at_rest()


@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_at_a_named_point_neither_loses_nor_doubles(
    point: str, tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, rounds: Rounds
) -> None:
    service = await _service(tmp_path, database, vhost, fleet)
    ids: list[str] = []
    for number in range(rounds(3, 20)):
        ids += await _publish_round(service, number)
        dying = service.spawn(kill_at=point)
        await dying.exited(-signal.SIGKILL, within_s=30)
    await _settle_the_rest(service, ids)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_while_commit_is_on_the_line_neither_loses_nor_doubles(
    moment: str,
    tmp_path: Path,
    database: Database,
    vhost: Vhost,
    fleet: StartFleet,
    relay_before: RelayBefore,
    rounds: Rounds,
) -> None:
    service = await _service(tmp_path, database, vhost, fleet)
    relay = await relay_before(database.url)
    ids: list[str] = []
    for number in range(rounds(3, 20)):
        ids += await _publish_round(service, number)
        # Before: the server never sees this COMMIT, because the line ends with the process. After: it has seen it, and
        # its answer has nobody to come to.
        if moment == "before":
            rule = relay.hold_on(STAMP_SENT, Direction.TO_SERVER)
        else:
            rule = relay.hold_on(STAMP_ANSWERED, Direction.TO_CLIENT)
        dying = service.spawn(database_url=relay.url(database.url))
        await asyncio.wait_for(rule.reached.wait(), 30)
        dying.kill()
        await dying.exited(-signal.SIGKILL)
        relay.cut()
        rule.release()
    await _settle_the_rest(service, ids)


@pytest.mark.parametrize("death", ["kill_in", "exit_in"])
async def test_a_handler_that_ends_its_process_costs_its_neighbours_nothing(
    death: str, service: Service, rounds: Rounds
) -> None:
    ids = [f"plain-{number}" for number in range(10)]
    for number in range(rounds(1, 3)):
        # The first delivery is not counted, so its attempt has number 1 as well as the one that is counted after it.
        deadly = f"deadly-{number}"
        ids.append(deadly)
        await service.publish(deadly, **{death: [1, 2]})
    await service.publish(*[message_id for message_id in ids if message_id.startswith("plain")], copies=2)
    code = -signal.SIGKILL if death == "kill_in" else 17
    deaths = 0
    while True:
        process = service.spawn()
        await eventually(
            lambda process=process: process.exit_code is not None or _nothing_left(service, len(ids)),
            30,
            what="the process dying or having worked on everything",
            every_s=0.1,
        )
        if process.exit_code is None:
            break
        await process.exited(code)
        deaths += 1
    await service.settled()
    await service.exact(ids)
    assert deaths >= 2, "nothing died"
    rows = await service.database.fetch("select 1 from inbox.message")
    assert not rows
    await service.stopped(process)


def _nothing_left(service: Service, wanted: int) -> bool:
    # The ledger is asked at the end; here it is enough that every message's last call did not end the process.
    calls = service.calls()
    last = {call["id"]: call["attempt"] for call in calls}
    return len(last) == wanted and all(attempt > 2 for name, attempt in last.items() if name.startswith("deadly"))
