"""Pools of real fleet processes: each bears its name, none starves another, and nesting is declared or refused."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.eventually import eventually, throughout
from tests.support.ledger import exactly_one_effect_each
from tests.support.outcomes import outcomes
from tests.support.process import StartFleet, command
from tests.support.service import QUEUE, SOURCE, Service
from tests.support.vhosts import Vhost

_HANDLER = "tests.support.nested:nested"


async def _by_pool(database: Database) -> Counter[str]:
    return Counter(row["application_name"] for row in await database.sessions())


async def test_every_session_of_a_process_bears_the_name_of_its_pool(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"lanes": 3}, "audit": {"lanes": 2}})
    await service.prepare()
    process = await service.start()
    go_on = service.file("go-on")
    ids = [f"message-{number}" for number in range(8)]
    await service.publish(*ids, wait_for=str(go_on))
    for message_id in ids:
        body = json.dumps({"wait_for": str(go_on)}).encode()
        await vhost.publish("audit", body, message_id=message_id, type="test.work", app_id=SOURCE)
    await eventually(lambda: len(service.calls()) == 5, what="every lane of both consumers being at work")

    async def wired() -> bool:
        seen = await _by_pool(database)
        assert set(seen) == {"tests-work", "tests-audit", "tests-housekeeping"}, seen
        return (seen["tests-work"], seen["tests-audit"]) == (3, 2) and seen["tests-housekeeping"] <= 2

    await throughout(wired, 1, what="each lane holding one session of its own pool, and nobody any other")
    go_on.touch()
    await service.settled()
    assert set((await _by_pool(database)).keys()) == {"tests-work", "tests-audit", "tests-housekeeping"}
    await service.stopped(process)
    await eventually(lambda: _none_left(database), what="no session being left")


async def _none_left(database: Database) -> bool:
    return not await database.sessions()


async def test_consumers_may_share_a_pool_that_is_sized_for_both(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    consumers = {"work": {"lanes": 3, "pool": "both"}, "audit": {"lanes": 2, "pool": "both"}}
    service = Service(tmp_path, database, vhost, fleet, consumers=consumers)
    await service.prepare()
    process = await service.start()
    go_on = service.file("go-on")
    body = json.dumps({"wait_for": str(go_on)}).encode()
    for number in range(4):
        await service.publish(f"message-{number}", wait_for=str(go_on))
        await vhost.publish("audit", body, message_id=f"message-{number}", type="test.work", app_id=SOURCE)
    await eventually(lambda: len(service.calls()) == 5, what="every lane of both consumers being at work")
    assert (await _by_pool(database))["tests-both"] == 5
    go_on.touch()
    await service.settled()
    await service.stopped(process)


async def test_a_consumer_whose_handlers_all_hang_delays_no_other(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"lanes": 3}, "audit": {"lanes": 2}})
    await service.prepare()
    process = await service.start()
    neighbour_place = tmp_path / "neighbour"
    neighbour_place.mkdir()
    # Another service on the same database, with queues of its own.
    neighbour = Service(
        neighbour_place, database, vhost, fleet, consumers={"audit": {"queue": "elsewhere", "lanes": 2}},
        tables={"service": {"name": "other"}},
    )  # fmt: skip
    await command(neighbour.config, "topology", "apply", database_url=database.url, amqp_url=vhost.url)
    other = await neighbour.start()
    await service.publish(*[f"hanging-{number}" for number in range(5)], sql_sleep_s=600)
    await eventually(lambda: len(service.calls()) == 3, what="every lane of one consumer hanging")
    began = time.monotonic()
    ids = [f"quick-{number}" for number in range(40)]
    for message_id in ids:
        await vhost.publish("audit", b"{}", message_id=message_id, type="test.work", app_id=SOURCE)
        await vhost.publish("elsewhere", b"{}", message_id=f"{message_id}-elsewhere", type="test.work", app_id=SOURCE)

    async def all_done() -> bool:
        queues = await vhost.queues()
        return not queues["audit"].total and not queues["elsewhere"].total

    await eventually(all_done, 5, what="the work of both others being done")
    assert time.monotonic() - began < 5, "the others had to wait for a timeout"
    await exactly_one_effect_each(database, [*ids, *(f"{message_id}-elsewhere" for message_id in ids)])
    seen = await _by_pool(database)
    assert seen.keys() >= {"tests-work", "tests-audit", "other-audit"}
    assert (await database.fetchval("select count(*) from inbox.receipt")) == 2 * len(ids)
    for each in (process, other):
        each.kill()


async def _nesting(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, *, nested: int, **consumer: Any
) -> Service:
    service = Service(
        tmp_path,
        database,
        vhost,
        fleet,
        consumers={"nested": {"queue": QUEUE, "handler": _HANDLER, "max_attempts": 2, "pacing": ["0s"], **consumer}},
        tables={"pools": {"nested": {"nested": nested, "acquire_timeout": "8s"}}},
    )
    await service.prepare()
    return service


async def test_a_nested_connection_that_was_not_declared_fails_at_once_and_by_name(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = await _nesting(tmp_path, database, vhost, fleet, nested=0, lanes=2)
    process = await service.start()
    began = time.monotonic()
    await service.publish("nested", kind="test.nested")
    await service.settled()
    assert time.monotonic() - began < 5, "it has waited for a connection that could not come"
    attempts = await database.fetch("select error_class, error_text from inbox.attempt")
    assert [row["error_class"].rpartition(".")[2] for row in attempts] == ["NestedAcquire"] * 2
    assert all("declare nested = 1" in row["error_text"] for row in attempts)
    assert await database.fetchval("select state from inbox.message") == "exhausted"
    await exactly_one_effect_each(database, [])
    # The pool is whole: the next one works.
    await service.publish("plain", kind="test.nested", depth=0)
    await service.settled()
    await exactly_one_effect_each(database, ["plain"])
    await service.stopped(process)


@pytest.mark.parametrize("nested", [1, 2])
async def test_declared_nested_connections_are_there_for_every_lane_at_once(
    nested: int, tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    lanes = 3
    service = await _nesting(tmp_path, database, vhost, fleet, nested=nested, lanes=lanes)
    process = await service.start()
    ids = [f"nested-{number}" for number in range(4 * lanes)]
    began = time.monotonic()
    await service.publish(*ids, kind="test.nested", depth=nested, seconds=0.3)
    most = 0

    async def all_done() -> bool:
        nonlocal most
        most = max(most, (await _by_pool(database))["tests-nested"])
        return not (await vhost.counts(QUEUE)).total

    await eventually(all_done, 20, what="all being done", every_s=0.05)
    assert time.monotonic() - began < 7, "lanes have waited for each other"
    await exactly_one_effect_each(database, ids)
    assert outcomes(process) == {"processed": len(ids)}
    assert lanes * (1 + nested) - 1 <= most <= lanes * (1 + nested) + 1, most
    await service.stopped(process)
