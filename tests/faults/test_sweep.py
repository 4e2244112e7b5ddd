"""What the broker loses comes back from the record, once; and what it only keeps for long is not published again.

The database's clock is moved on, so that hours pass for the sweep while none pass for the broker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from servers import RabbitServer
from tests.support.clock import Clock
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.owing import nothing_on_record
from tests.support.process import FleetProcess, StartFleet
from tests.support.service import QUEUE, Service
from tests.support.vhosts import Vhost

HOUR_S = 3600.0
DUTY_S = 90.0
"""After which another process takes the duty of one that has died."""
PARKED_LONG = f"{QUEUE}.park.1h"

MakeService = Callable[..., Awaitable[Service]]


@pytest.fixture
def sweeping(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> MakeService:
    """`service = await sweeping(pacing=["1h"])`: a service that sweeps all the time."""

    async def make(tables: dict[str, Any] | None = None, **work: Any) -> Service:
        tables = {"sweep": {"every": "100ms"}, "members": {"heartbeat": "200ms", "expiry": "30d"}, **(tables or {})}
        service = Service(tmp_path, database, vhost, fleet, consumers={"work": work}, tables=tables)
        await service.prepare()
        return service

    return make


@pytest.fixture
def clock(database: Database) -> Clock:
    return Clock(database)


def marked(*processes: FleetProcess) -> list[str]:
    """Return the messages that these processes have asked a copy for."""
    return [event["message_id"] for process in processes for event in process.events("sweep.marked")]


async def swept(service: Service, number: int = 3) -> None:
    """Wait until the sweep has begun so many rounds more."""
    seen = set()

    async def are_over() -> bool:
        seen.add(await service.database.fetchval("select held_until from inbox.duty where name = 'sweep'"))
        return len(seen) > number

    await eventually(are_over, 20, what=f"{number} rounds of the sweep")


async def hours(service: Service, clock: Clock, number: int) -> None:
    """Let hours pass for the sweep, with rounds in each."""
    for _ in range(number):
        await clock.move_on(HOUR_S)
        await swept(service)


async def minutes_until(clock: Clock, condition: Callable[[], bool], what: str) -> None:
    """Let minutes pass for the sweep until something is so."""

    async def is_so() -> bool:
        if not condition():
            await clock.move_on(60)
        return condition()

    await eventually(is_so, 60, what=what, every_s=0.2)


async def ready(service: Service, queue: str, number: int) -> None:
    """Wait until a queue has so many messages ready, and nothing in anybody's hands."""

    async def has() -> bool:
        counts = await service.vhost.counts(queue)
        return (counts.ready, counts.unacknowledged) == (number, 0)

    await eventually(has, 30, what=f"{number} messages ready in {queue}")


async def purge(service: Service, queue: str) -> None:
    """Lose what a queue holds."""
    await (await (await service.vhost.channel()).get_queue(queue, ensure=False)).purge()


async def parked_and_dead(service: Service, message_id: str) -> None:
    """Let a message fail, and be parked by a process that dies then: its one copy comes back when its time has come."""
    await service.publish(message_id, fail_in=[1])
    await service.spawn(kill_at="park.confirmed").exited(-signal.SIGKILL, within_s=30)
    await ready(service, QUEUE, 1)
    await purge(service, QUEUE)


# What was lost.


async def test_a_message_whose_parking_queue_was_purged_is_processed_once(sweeping: MakeService, clock: Clock) -> None:
    service = await sweeping(pacing=["1h"])
    process = await service.start()
    await service.publish("lost", fail_in=[1])
    await ready(service, PARKED_LONG, 1)
    # The copy is seen in its parking queue, however late it is.
    await hours(service, clock, 10)
    assert marked(process) == []

    await purge(service, PARKED_LONG)
    await minutes_until(clock, lambda: marked(process) == ["lost"], "a copy being asked for")
    await nothing_on_record(service)
    await service.settled()
    await service.exact(["lost"])
    assert service.starts() == {"lost": 2}
    _, page = await process.get("/metrics")
    assert 'inbox_swept_total{consumer="work",outcome="copy_needed"} 1.0' in page
    await service.stopped(process)
    await service.at_rest()


async def test_a_message_that_was_lost_with_its_work_queue_is_processed_once(
    sweeping: MakeService, clock: Clock
) -> None:
    service = await sweeping(pacing=["5s"])
    await parked_and_dead(service, "lost")
    await ready(service, QUEUE, 1)
    await (await service.vhost.channel()).queue_delete(QUEUE)
    await service.apply_topology()
    process = await service.start()
    await minutes_until(clock, lambda: marked(process) == ["lost"], "a copy being asked for")
    await nothing_on_record(service)
    await service.settled()
    await service.exact(["lost"])
    assert service.starts() == {"lost": 2}
    await service.stopped(process)
    await service.at_rest()


async def test_a_message_that_died_with_its_process_and_whose_delivery_was_lost_is_processed_once(
    sweeping: MakeService, clock: Clock, database: Database
) -> None:
    service = await sweeping({"members": {"heartbeat": "200ms", "expiry": "1s"}})
    await service.publish_redelivered("deadly", kill_in=[1])
    await service.spawn().exited(-signal.SIGKILL, within_s=30)
    await ready(service, QUEUE, 1)
    await purge(service, QUEUE)
    process = await service.start()
    await clock.move_on(DUTY_S)
    await eventually(lambda: process.events("sweep.judged"), 30, what="the death being judged")
    (judged,) = process.events("sweep.judged")
    assert (judged["message_id"], judged["attempt"], judged["outcome"]) == ("deadly", 1, "waiting")
    await minutes_until(clock, lambda: marked(process) == ["deadly"], "a copy being asked for")
    await nothing_on_record(service)
    await service.settled()
    await service.exact(["deadly"])
    assert service.starts() == {"deadly": 2}
    history = await database.fetchval("select attempts::text from inbox.history where event = 'processed'")
    assert history.count('"crashed"') == 1
    assert len(process.events("sweep.judged")) == 1
    await service.stopped(process)
    await service.at_rest()


# What was not.


async def test_nothing_is_asked_for_while_an_hours_backlog_is_worked_off(sweeping: MakeService, clock: Clock) -> None:
    service = await sweeping(
        {"drain": {"deadline": "90s", "grace_period": "150s"}},
        pacing=["20s"],
        handler_timeout="60s",
    )
    await parked_and_dead(service, "late")
    go_on, ids = service.file("go-on"), [f"message-{number}" for number in range(2000)]
    await service.publish(*ids, wait_for=str(go_on))
    # Its copy comes back behind all the others.
    await ready(service, QUEUE, len(ids) + 1)
    process = await service.start()
    await hours(service, clock, 12)
    assert marked(process) == []
    go_on.touch()
    await service.settled(120)
    await hours(service, clock, 6)
    assert marked(process) == []
    await service.exact([*ids, "late"])
    assert service.starts()["late"] == 2
    await service.stopped(process)
    await service.at_rest()


async def test_nothing_is_asked_for_that_waited_in_a_queue_which_nobody_consumed(
    sweeping: MakeService, clock: Clock
) -> None:
    service = await sweeping(pacing=["5s"])
    await parked_and_dead(service, "late")
    await ready(service, QUEUE, 1)
    await clock.move_on(12 * HOUR_S)
    process = await service.start()
    await service.settled()
    await hours(service, clock, 3)
    assert marked(process) == []
    await service.exact(["late"])
    await service.stopped(process)
    await service.at_rest()


async def test_nothing_is_asked_for_while_a_paused_process_holds_it_in_its_hands(
    tmp_path: Path, database: Database, own_broker: RabbitServer, own_vhost: Vhost, fleet: StartFleet, clock: Clock
) -> None:
    tables = {
        "sweep": {"every": "100ms"},
        "members": {"heartbeat": "200ms", "expiry": "30d"},
        "breaker": {"hold": "120s"},
        "broker": {"operation_timeout": "2s"},
    }
    service = Service(tmp_path, database, own_vhost, fleet, consumers={"work": {"pacing": ["200ms"]}}, tables=tables)
    await service.prepare()
    process = await service.start()
    await service.publish("held", fail_in=[1])
    await service.settled()
    # What is to be parked from now on is held, unsettled, in no queue that anybody could look at.
    await service.publish("held-2", fail_in=[1], wait_for=str(service.file("go-on")))
    await eventually(lambda: service.starts()["held-2"] == 1, what="the start of the second one")
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, 0)
    service.file("go-on").touch()

    async def is_paused() -> bool:
        return await database.fetchval("select 'work' = any (paused) from inbox.member")

    await eventually(is_paused, 30, what="the process saying that it is paused")
    counts = await own_vhost.queues()
    assert {name: each.ready for name, each in counts.items() if each.ready} == {}
    await hours(service, clock, 12)
    assert marked(process) == []
    assert await is_paused()
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, None)
    await service.settled(60)
    await hours(service, clock, 3)
    assert marked(process) == []
    await service.exact(["held", "held-2"])
    await service.stopped(process)


# A sweep that dies.


async def test_a_sweep_that_dies_when_it_has_asked_for_a_copy_asks_for_each_once(
    sweeping: MakeService, clock: Clock, database: Database, rounds: Callable[[int, int], int]
) -> None:
    service = await sweeping({"members": {"heartbeat": "200ms", "expiry": "1s"}}, pacing=["1h"])
    number = rounds(3, 10)
    ids = [f"lost-{each}" for each in range(number + 2)]
    first = await service.start()
    await service.publish(*ids, fail_in=[1])
    await ready(service, PARKED_LONG, len(ids))
    await service.stopped(first)
    await purge(service, PARKED_LONG)
    await clock.move_on(4 * HOUR_S)

    dead: list[FleetProcess] = []
    for _ in range(number):
        dying = await service.start(kill_at="sweep.marked")
        await minutes_until(clock, lambda dying=dying: dying.exit_code is not None, "the death of a sweep")
        await dying.exited(-signal.SIGKILL)
        assert len(marked(dying)) == 1
        dead.append(dying)
    last = await service.start()
    await minutes_until(clock, lambda: len(marked(last)) == 2, "copies of the others being asked for")
    assert sorted(marked(*dead, last)) == ids
    await nothing_on_record(service)
    await service.settled()
    await service.exact(ids)
    assert service.starts() == dict.fromkeys(ids, 2)
    await service.stopped(last)
    await service.at_rest()


async def test_a_sweep_that_dies_when_it_has_judged_a_death_has_it_charged_once(
    sweeping: MakeService, clock: Clock, database: Database, rounds: Callable[[int, int], int]
) -> None:
    service = await sweeping({"members": {"heartbeat": "200ms", "expiry": "1s"}}, lanes=16, max_attempts=2)
    number = rounds(3, 10)
    ids, go_on = [f"dead-{each}" for each in range(number + 2)], service.file("go-on")
    await service.publish_redelivered(*ids, wait_for=str(go_on))
    first = await service.start()
    await eventually(lambda: len(service.calls()) == len(ids), 20, what="all of them being worked on")
    first.kill()
    await first.exited(-signal.SIGKILL)
    await ready(service, QUEUE, len(ids))
    await purge(service, QUEUE)

    for _ in range(number):
        dying = service.spawn(kill_at="sweep.judged")
        await clock.move_on(DUTY_S)
        await dying.exited(-signal.SIGKILL, within_s=30)
    last = await service.start()
    await clock.move_on(DUTY_S)
    await eventually(lambda: len(last.events("sweep.judged")) == 2, 30, what="the others being judged")
    found = await database.fetch("select outcome, charged from inbox.attempt")
    assert [tuple(row) for row in found] == [("crashed", False)] * len(ids)
    await minutes_until(clock, lambda: len(marked(last)) == len(ids), "copies being asked for")
    go_on.touch()
    await nothing_on_record(service)
    await service.settled()
    await service.exact(ids)
    assert service.starts() == dict.fromkeys(ids, 2)
    await service.stopped(last)
    await service.at_rest()
