"""A service that only handlers know is down: the consumer pauses, nobody is charged, and it finds the end by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.eventually import eventually, throughout
from tests.support.outcomes import alive, not_ready, nothing_charged
from tests.support.process import StartFleet
from tests.support.service import Service
from tests.support.vhosts import Vhost


@pytest.fixture
async def reporting(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """A service whose consumer pauses when its handlers report an outage."""
    faults = {"ConnectionError": "pause"}
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"faults": faults, "max_aborts": 50}})
    await service.prepare()
    return service


async def test_a_consumer_pauses_while_a_service_is_down_and_goes_on_when_it_is_back(reporting: Service) -> None:
    service, up = reporting, reporting.file("up")
    process = await service.start()
    ids = [f"message-{number}" for number in range(30)]
    await service.publish(*ids, needs=str(up))
    assert "a handler met tests.support.behaviours.ServiceDown" in await not_ready(process, within_s=10)
    await throughout(lambda: alive(process), 5, what="the process being alive")
    # Four lanes, and one try after each pause of at least a twentieth of a second that doubles: a spin would be
    # hundreds a second.
    assert 4 <= len(service.calls()) <= 60
    up.touch()
    await service.settled(60)
    await service.exact(ids)
    nothing_charged(process)
    await eventually(lambda: process.events("breaker.closed"), what="a breaker that was closed")
    await process.ready()
    await service.stopped(process)
    await service.at_rest()


async def test_deliveries_are_not_held_for_ever_while_a_service_is_down(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(
        tmp_path,
        database,
        vhost,
        fleet,
        consumers={"work": {"faults": {"ConnectionError": "pause"}, "max_aborts": 200}},
        tables={"breaker": {"hold": "1s"}},
    )
    await service.prepare()
    process, up = await service.start(), service.file("up")
    ids = [f"message-{number}" for number in range(30)]
    await service.publish(*ids, needs=str(up))
    await eventually(lambda: len(process.events("breaker.gave_back")) >= 2, 60, what="giving back, twice")
    assert await alive(process)
    up.touch()
    await service.settled(60)
    await service.exact(ids)
    nothing_charged(process)
    await service.stopped(process)
    await service.at_rest()
