"""Broken lines to database and broker: cut at the worst byte, half open, one-way, slow. One effect, nobody charged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.relay import Direction, Relay
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.process import FleetProcess, StartFleet
from tests.support.relay import RelayBefore
from tests.support.service import Service
from tests.support.vhosts import Vhost
from tests.support.wire import STAMP_ANSWERED, STAMP_SENT, publish_into

Rounds = Callable[[int, int], int]

# Outcomes that cost a message nothing; whatever else is in the log was charged, or ended the message.
_FREE = {"processed", "duplicate", "contended", "undecided", "early", "unknown", "unavailable", "stopped", "aborted"}


def _outcomes(process: FleetProcess) -> Counter[str]:
    return Counter(event["outcome"] for event in process.events("attempt.settled"))


async def _not_ready(process: FleetProcess, within_s: float) -> None:
    async def says_so() -> bool:
        status, _ = await process.get("/readyz")
        return status == 503

    await eventually(says_so, within_s, what="the process saying that it is not ready", every_s=0.1)


async def _ends_well(service: Service, process: FleetProcess, ids: list[str]) -> None:
    await service.settled(60)
    await service.exact(ids)
    assert set(_outcomes(process)) <= _FREE, _outcomes(process)
    await service.stopped(process)
    await service.at_rest()


@pytest.mark.parametrize("lost", ["commit", "answer"])
async def test_a_commit_with_an_unknown_outcome_is_settled_by_its_redelivery(
    lost: str, service: Service, relay_before: RelayBefore, rounds: Rounds
) -> None:
    relay = await relay_before(service.database.url)
    process = await service.start(database_url=relay.url(service.database.url))
    ids: list[str] = []
    number = rounds(20, 100)
    for each in range(number):
        if lost == "commit":
            rule = relay.cut_on(STAMP_SENT, Direction.TO_SERVER)
        else:
            rule = relay.cut_on(STAMP_ANSWERED, Direction.TO_CLIENT)
        ids.append(f"message-{each}")
        await service.publish(ids[-1])
        await asyncio.wait_for(rule.reached.wait(), 30)
    await service.settled(60)
    assert _outcomes(process)["unknown"] >= number
    await _ends_well(service, process, ids)


@pytest.mark.parametrize("line", ["database", "broker", "both"])
async def test_lines_that_are_reset_under_load_lose_and_double_nothing(
    line: str, service: Service, relay_before: RelayBefore, rounds: Rounds
) -> None:
    to_database = await relay_before(service.database.url)
    to_broker = await relay_before(service.vhost.url)
    process = await service.start(
        database_url=to_database.url(service.database.url), amqp_url=to_broker.url(service.vhost.url)
    )
    ids = [f"message-{each}" for each in range(120)]
    publishing = asyncio.create_task(service.publish(*ids, copies=2, sql_sleep_s=0.01))
    for cut in range(rounds(4, 20)):
        done = len(service.calls())
        await eventually(
            lambda done=done: len(service.calls()) > done + 5 or publishing.done(), 30, what="work going on"
        )
        if line in ("database", "both"):
            to_database.cut()
        if line in ("broker", "both"):
            to_broker.cut()
        assert process.exit_code is None, f"it ended at cut {cut}"
    await publishing
    await _ends_well(service, process, ids)


@pytest.mark.parametrize("fault", ["half_open", "drop"])
async def test_work_resumes_after_the_database_line_was_dead_for_longer_than_its_bounds(
    fault: str, service: Service, relay_before: RelayBefore
) -> None:
    relay = await relay_before(service.database.url)
    process = await service.start(database_url=relay.url(service.database.url))
    ids = [f"message-{each}" for each in range(10)]
    await service.publish("before")
    await service.settled()
    if fault == "half_open":
        relay.half_open()
    else:
        relay.drop(Direction.TO_CLIENT)
    await service.publish(*ids)
    # A statement of the fleet's own may take 10 s, and opening a connection another 10 s.
    await _not_ready(process, within_s=25)
    relay.heal()
    relay.cut()
    await _ends_well(service, process, ["before", *ids])


async def test_slow_lines_change_nothing_but_the_time(service: Service, relay_before: RelayBefore) -> None:
    to_database = await relay_before(service.database.url)
    to_broker = await relay_before(service.vhost.url)
    for relay in (to_database, to_broker):
        relay.delay(0.03)
    process = await service.start(
        database_url=to_database.url(service.database.url), amqp_url=to_broker.url(service.vhost.url)
    )
    ids = [f"message-{each}" for each in range(30)]
    await service.publish(*ids, copies=2)
    await _ends_well(service, process, ids)


async def test_a_settlement_that_is_late_for_its_channel_is_dropped_and_hurts_nobody(service: Service) -> None:
    await service.publish("late", "neighbour-1", "neighbour-2")
    process = service.spawn(freeze_at="ack.before")
    await process.frozen()
    await service.vhost.close_all_connections()
    process.proceed()
    await _ends_well(service, process, ["late", "neighbour-1", "neighbour-2"])
    assert "unknown delivery tag" not in process.output


async def test_consuming_resumes_after_the_broker_line_was_half_open(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, relay_before: RelayBefore
) -> None:
    service = Service(tmp_path, database, vhost, fleet, tables={"broker": {"heartbeat": "1s"}})
    await service.prepare()
    relay: Relay = await relay_before(vhost.url)
    process = await service.start(amqp_url=relay.url(vhost.url))
    await service.publish("before")
    await service.settled()
    relay.half_open()
    await service.publish("while-dead")
    # Heartbeats of 1 s are given up after 6 s; until then nobody can know.
    await _not_ready(process, within_s=15)
    relay.cut()
    relay.heal()
    await service.publish("after")
    await _ends_well(service, process, ["before", "while-dead", "after"])


async def test_a_park_whose_confirm_is_lost_leaves_two_copies_and_one_effect(
    service: Service, relay_before: RelayBefore
) -> None:
    relay = await relay_before(service.vhost.url)
    process = await service.start(amqp_url=relay.url(service.vhost.url))
    rule = relay.cut_on(publish_into("work.park.200ms"), Direction.TO_SERVER, "after")
    await service.publish("parked", fail_in=[1, 2])
    await asyncio.wait_for(rule.reached.wait(), 30)
    await service.settled(60)
    await service.exact(["parked"])
    assert service.starts()["parked"] == 3
    await service.stopped(process)
    await service.at_rest()


async def test_a_park_on_a_line_that_goes_dead_is_made_again_on_another_line(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, relay_before: RelayBefore
) -> None:
    service = Service(
        tmp_path, database, vhost, fleet, tables={"broker": {"heartbeat": "1s", "operation_timeout": "1s"}}
    )
    await service.prepare()
    relay = await relay_before(vhost.url)
    process = await service.start(amqp_url=relay.url(vhost.url))
    # From here on the broker hears nothing from the publisher, whose socket stays open; it may consume and ack.
    rule = relay.hold_on(publish_into("work.park.200ms"), Direction.TO_SERVER)
    await service.publish("parked", fail_in=[1, 2])
    await asyncio.wait_for(rule.reached.wait(), 30)
    await service.publish("neighbour")
    await eventually(lambda: service.starts()["parked"] == 3, 40, what="the attempt after the park")
    await service.settled(30)
    await service.exact(["parked", "neighbour"])
    assert service.starts() == {"parked": 3, "neighbour": 1}
    assert process.events("message.not_parked"), "the line was not dead"
    await service.stopped(process)
    await service.at_rest()
