"""The republisher on broken lines: a lost confirm, a dead line, an alarm, no broker. What is owed arrives in the end.

At most one copy more than needed comes of each fault, and it starts nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest_asyncio

from servers import RabbitServer
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.eventually import eventually, throughout
from tests.support.operators import replayed
from tests.support.owing import DEAD, dead_letters, ended, nothing_on_record, on_record, owed
from tests.support.process import FleetProcess, StartFleet
from tests.support.relay import RelayBefore
from tests.support.service import QUEUE, Service
from tests.support.vhosts import Vhost
from tests.support.wire import publish_into

IDS = ["m-1", "m-2", "m-3"]


def quick(directory: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """A service that gives up on a broker soon."""
    tables = {"broker": {"heartbeat": "1s", "operation_timeout": "1s"}}
    return Service(directory, database, vhost, fleet, consumers={"work": {"pacing": ["200ms"]}}, tables=tables)


@pytest_asyncio.fixture
async def service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    made = quick(tmp_path, database, vhost, fleet)
    await made.prepare()
    return made


def settled(process: FleetProcess) -> Counter[str]:
    """How often a delivery of each message was settled."""
    return Counter(event["message_id"] for event in process.events("attempt.settled"))


async def test_where_the_confirm_is_lost_a_second_copy_comes_at_most_and_there_is_one_effect(
    service: Service, relay_before: RelayBefore
) -> None:
    relay = await relay_before(service.vhost.url)
    keys = await on_record(service.database, *IDS)
    lost = relay.cut_on(publish_into(DEAD), Direction.TO_SERVER, "after")
    process = await service.start(amqp_url=relay.url(service.vhost.url))
    await asyncio.wait_for(lost.reached.wait(), 30)
    await ended(service, len(IDS))
    letters = await dead_letters(service)
    assert letters.keys() == set(IDS)
    assert max(letters.values()) == 2, "no confirm was lost"

    lost = relay.cut_on(publish_into(QUEUE), Direction.TO_SERVER, "after")
    await replayed(service.database, *keys)
    await asyncio.wait_for(lost.reached.wait(), 30)
    await nothing_on_record(service)
    await service.settled()
    await service.exact(IDS)
    assert service.starts() == dict.fromkeys(IDS, 1)
    assert max(settled(process).values()) <= 2
    await service.stopped(process)
    await service.at_rest()


async def test_on_a_line_that_goes_dead_what_is_owed_is_published_again_on_another_line(
    service: Service, relay_before: RelayBefore
) -> None:
    relay = await relay_before(service.vhost.url)
    keys = await on_record(service.database, *IDS)
    # From here on the broker hears nothing from the publisher, whose socket stays open; the consumer's line is another.
    dead = relay.hold_on(publish_into(DEAD), Direction.TO_SERVER)
    process = await service.start(amqp_url=relay.url(service.vhost.url))
    await asyncio.wait_for(dead.reached.wait(), 30)
    await ended(service, len(IDS), within_s=40)
    assert await dead_letters(service) == dict.fromkeys(IDS, 1)
    assert process.events("republish.waiting"), "the line was not dead"

    dead = relay.hold_on(publish_into(QUEUE), Direction.TO_SERVER)
    await replayed(service.database, *keys)
    await asyncio.wait_for(dead.reached.wait(), 30)
    await nothing_on_record(service, within_s=40)
    await service.settled()
    await service.exact(IDS)
    assert settled(process) == dict.fromkeys(IDS, 1)
    await service.stopped(process)
    await service.at_rest()


async def test_while_there_is_no_broker_nothing_spins_and_what_is_owed_arrives_when_it_is_back(
    service: Service, relay_before: RelayBefore
) -> None:
    relay = await relay_before(service.vhost.url)
    ids = [f"message-{number}" for number in range(50)]
    process = await service.start(amqp_url=relay.url(service.vhost.url))
    relay.refuse()
    relay.cut()
    await eventually(lambda: process.events("publisher.waiting"), 20, what="the publisher being without a connection")
    keys = await on_record(service.database, *ids)
    await replayed(service.database, *keys[:25])
    used_s = process.cpu_s

    async def all_is_owed() -> bool:
        return await owed(service.database) == len(ids)

    await throughout(all_is_owed, 4.0, what="everything being owed")
    # A loop without a pause would take all of a core.
    assert process.cpu_s - used_s < 1.5
    assert "republish." not in process.output
    await relay.open()
    await eventually(lambda: len(service.starts()) == 25, 40, what="the copies coming")
    await ended(service, 25, within_s=40)
    await service.settled()
    await service.exact(ids[:25], terminal=dict.fromkeys(ids[25:], "exhausted"))
    assert await dead_letters(service) == dict.fromkeys(ids[25:], 1)
    await service.stopped(process)
    await service.at_rest()


async def test_under_a_memory_alarm_what_is_owed_waits_and_arrives_after_it(
    tmp_path: Path, database: Database, own_broker: RabbitServer, own_vhost: Vhost, fleet: StartFleet
) -> None:
    service = quick(tmp_path, database, own_vhost, fleet)
    await service.prepare()
    process = await service.start()
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, 0)
    ids = [f"message-{number}" for number in range(40)]
    keys = await on_record(database, *ids)
    await replayed(database, *keys[:20])

    async def none_is_served() -> bool:
        return await owed(database) == len(ids)

    # The first ones are sent before the broker has said that it reads nothing; then nothing is.
    await eventually(lambda: len(process.events("republish.waiting")) >= 3, 40, what="three tries in vain")
    assert await none_is_served()
    assert process.events("republish.failed") == []
    assert "it was not sent" in process.events("republish.waiting")[-1]["problem"]
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, None)
    await eventually(lambda: len(service.starts()) == 20, 60, what="the copies coming")
    await ended(service, 20, within_s=60)
    await service.settled()
    await service.exact(ids[:20], terminal=dict.fromkeys(ids[20:], "exhausted"))
    assert service.starts() == dict.fromkeys(ids[:20], 1)
    assert max(settled(process).values()) <= 2
    letters = await dead_letters(service)
    assert letters.keys() == set(ids[20:])
    assert max(letters.values()) <= 2
    await service.stopped(process)
    await service.at_rest()
