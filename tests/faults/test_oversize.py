"""Messages that are too large, in a running fleet: their bytes are never nowhere, and others flow past them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import aio_pika
import aio_pika.abc
import pytest
import pytest_asyncio

from inbox import message_key
from inbox.oversize import KEPT_BYTES
from inbox.points import OVERSIZE_POINTS
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.operators import frozen
from tests.support.process import FleetProcess, StartFleet
from tests.support.property_lists import listing
from tests.support.raw_publish import publish_raw
from tests.support.relay import RelayBefore
from tests.support.service import QUEUE, SOURCE, Service
from tests.support.vhosts import Vhost
from tests.support.wire import CONFIRM, publish_into

DEAD = f"{QUEUE}.dead"
LIMIT = 256 * 2**10
PADDING = "x" * LIMIT
MIB = 2**20


def service_with(
    directory: Path, database: Database, vhost: Vhost, fleet: StartFleet, *, heartbeat: str = "10s", **table: Any
) -> Service:
    """Return a service with a low limit; `table` is over it."""
    table = {"max_stored_bytes": LIMIT, "pacing": ["200ms"], **table}
    tables = {"broker": {"operation_timeout": "2s", "heartbeat": heartbeat}}
    return Service(directory, database, vhost, fleet, consumers={"work": table}, tables=tables)


@pytest_asyncio.fixture
async def service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    made = service_with(tmp_path, database, vhost, fleet)
    await made.prepare()
    return made


async def letters(service: Service, *ids: str) -> list[aio_pika.abc.AbstractIncomingMessage]:
    """Take the dead letters, assert that each of these messages is among them, whole, and no other."""
    found = await service.vhost.drain(DEAD)
    assert {letter.message_id for letter in found} == set(ids)
    for letter in found:
        key = message_key("work", SOURCE, str(letter.message_id))
        whole = await service.database.fetchrow(
            "select whole_bytes, whole_sha256, body, state, reason from inbox.message where key = $1", key
        )
        assert whole is not None, f"{letter.message_id} has a dead letter and no row"
        assert (whole["whole_bytes"], whole["whole_sha256"]) == (len(letter.body), sha256(letter.body).digest())
        assert whole["body"] == letter.body[:KEPT_BYTES]
        assert (whole["state"], whole["reason"]) == ("rejected", "too_large")
        assert letter.headers["x-inbox-key"] == str(key)
        assert letter.headers["x-inbox-reason"] == "too_large"
    return found


async def ends(service: Service, good: list[str], large: list[str]) -> None:
    """Wait until all is settled, and assert that the good ones are processed and the large ones rejected."""
    await service.settled(60)
    await service.exact(good, terminal=dict.fromkeys(large, "rejected"))
    assert not set(large) & service.starts().keys(), "a message that was too large has been begun"
    assert await service.database.fetchval("select count(*) from inbox.attempt") == 0


def peak_bytes(process: FleetProcess) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def test_small_messages_flow_past_large_ones_and_memory_is_that_of_what_is_in_hand(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = service_with(
        tmp_path, database, vhost, fleet, max_stored_bytes="16MiB", lanes=2, look_ahead=1, pacing=["1s"]
    )
    await service.prepare()
    process = await service.start()
    await service.publish("before")
    await service.settled()
    before = peak_bytes(process)
    large = [f"large-{number}" for number in range(12)]
    small = [f"small-{number}" for number in range(100)]
    padding = "x" * 17 * MIB
    for number, each in enumerate(large):
        await service.publish(*small[number * 9 : number * 9 + 9])
        await service.publish(each, padding=padding)
    await service.publish(*small[len(large) * 9 :])
    await ends(service, ["before", *small], large)
    # Of 204 MiB in all: what three deliveries hold, and what is made of one on its way out, twice.
    assert peak_bytes(process) - before < 7 * 17 * MIB
    assert len(await letters(service, *large)) == len(large)
    assert not process.events("message.not_kept") and not process.events("breaker.opened")
    assert {line["message_id"] for line in process.events("message.too_large")} == set(large)
    assert (
        'inbox_attempts_total{consumer="work",outcome="rejected",type="test.work"} 12.0'
        in (await process.get("/metrics"))[1]
    )
    await service.stopped(process)
    await service.at_rest()


async def test_copies_are_absorbed_the_moved_dead_letter_too_and_a_replay_leaves_it_out(service: Service) -> None:
    process = await service.start()
    await service.publish("large", copies=3, padding=PADDING)
    await service.publish("small")
    await ends(service, ["small"], ["large"])
    (letter,) = await letters(service, "large")
    await service.vhost.publish(
        QUEUE, letter.body, message_id="large", type="test.work", app_id=SOURCE, headers=dict(letter.headers)
    )
    await ends(service, ["small"], ["large"])
    assert await letters(service) == []
    job = await frozen(service.database, limit=1)
    answer = await service.database.fetchrow("select outcome, detail from inbox.replay_next($1, 1)", job.id)
    assert answer is not None and answer["outcome"] == "skipped" and "too large" in answer["detail"]
    await ends(service, ["small"], ["large"])
    await service.stopped(process)
    await service.at_rest()


async def test_a_large_message_without_an_id_is_kept_under_its_bytes_once(service: Service) -> None:
    process = await service.start()
    body = b"\x00\xff" * LIMIT
    for _ in range(2):
        await publish_raw(service.vhost, listing(app_id=b"tests", delivery_mode=2), body)
    await service.settled()
    (row,) = await service.database.fetch("select key, state, reason, whole_bytes from inbox.message")
    assert tuple(row)[1:] == ("rejected", "too_large", len(body))
    (letter,) = await service.vhost.drain(DEAD)
    assert letter.body == body and letter.headers["x-inbox-key"] == str(row["key"])
    await service.stopped(process)


@pytest.mark.parametrize("point", OVERSIZE_POINTS)
async def test_a_kill_at_a_named_point_loses_nothing_and_costs_one_dead_letter_at_most(
    point: str, service: Service, rounds: Callable[[int, int], int]
) -> None:
    large: list[str] = []
    small: list[str] = []
    for each in range(rounds(3, 20)):
        large.append(f"large-{each}")
        small.append(f"small-{each}")
        await service.publish(large[-1], padding=PADDING)
        await service.publish(small[-1])
        await service.spawn(kill_at=point).exited(-signal.SIGKILL, within_s=30)
        next_one = await service.start()
        await ends(service, small, large)
        assert len(await letters(service, large[-1])) == (2 if point == "oversize.confirmed" else 1)
        await service.stopped(next_one)
    await service.at_rest()


async def test_a_confirm_that_is_lost_costs_a_second_dead_letter_and_nothing_else(
    service: Service, relay_before: RelayBefore
) -> None:
    relay = await relay_before(service.vhost.url)
    process = await service.start(amqp_url=relay.url(service.vhost.url))
    # Of what comes to a client of ours, only the publisher is sent acks.
    lost = relay.cut_on(CONFIRM, Direction.TO_CLIENT, "before")
    await service.publish("large", padding=PADDING)
    await asyncio.wait_for(lost.reached.wait(), 30)
    await service.publish("small")
    await ends(service, ["small"], ["large"])
    assert len(await letters(service, "large")) == 2, "no confirm was lost"
    await service.stopped(process)
    await service.at_rest()


async def test_on_a_line_that_goes_dead_it_is_sent_again_on_another_line(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, relay_before: RelayBefore
) -> None:
    service = service_with(tmp_path, database, vhost, fleet, heartbeat="1s")
    await service.prepare()
    relay = await relay_before(vhost.url)
    process = await service.start(amqp_url=relay.url(vhost.url))
    # From here on the broker hears nothing from the publisher, whose socket stays open.
    dead = relay.hold_on(publish_into(DEAD), Direction.TO_SERVER)
    await service.publish("large", padding=PADDING)
    await asyncio.wait_for(dead.reached.wait(), 30)
    await service.publish("small")
    await ends(service, ["small"], ["large"])
    assert len(await letters(service, "large")) == 1
    assert process.events("message.not_kept"), "the line was not dead"
    await service.stopped(process)
    await service.at_rest()


async def test_while_its_queue_is_gone_it_waits_in_the_broker_and_others_flow(service: Service) -> None:
    process = await service.start()
    await (await service.vhost.channel()).queue_delete(DEAD)
    await service.publish("large", padding=PADDING)
    await service.publish("small-1", "small-2")
    await eventually(lambda: len(process.events("message.not_kept")) >= 3, 30, what="it being tried again and again")
    await eventually(lambda: len(service.starts()) == 2, 30, what="the others flowing")
    assert await service.database.fetchval("select count(*) from inbox.message") == 0
    assert not process.events("breaker.opened")
    assert 'outcome="unkept"' in (await process.get("/metrics"))[1]
    await service.apply_topology()
    await ends(service, ["small-1", "small-2"], ["large"])
    assert len(await letters(service, "large")) == 1
    await service.stopped(process)
    await service.at_rest()


async def test_without_dead_letters_it_waits_in_the_broker_until_more_is_allowed(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = service_with(tmp_path, database, vhost, fleet, dead_letters=False)
    await service.prepare()
    process = await service.start()
    await service.publish("large", padding=PADDING)
    await service.publish("small")
    told = await eventually(lambda: process.events("message.not_kept"), 30, what="the message being told of")
    assert "dead_letters = false" in told[0]["problem"]
    await eventually(lambda: len(process.events("message.not_kept")) >= 3, 30, what="it coming again and again")
    assert service.starts() == {"small": 1}
    assert await database.fetchval("select count(*) from inbox.message") == 0
    await service.stopped(process)
    allowing = service_with(tmp_path, database, vhost, fleet, dead_letters=False, max_stored_bytes="1MiB")
    process = await allowing.start()
    await service.settled()
    await service.exact(["small", "large"])
    await service.stopped(process)
    await service.at_rest()


async def test_what_is_on_record_when_less_is_allowed_runs_on(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    allowing = service_with(tmp_path, database, vhost, fleet, max_stored_bytes="1MiB", pacing=["1s"])
    await allowing.prepare()
    process = await allowing.start()
    await allowing.publish("large", padding=PADDING, fail_in=[1, 2])
    await eventually(lambda: process.events("attempt.settled"), 30, what="its first attempt")
    await allowing.stopped(process)
    service = service_with(tmp_path, database, vhost, fleet, pacing=["1s"])
    process = await service.start()
    await service.settled()
    await service.exact(["large"])
    assert service.starts() == {"large": 3}
    await service.stopped(process)
    await service.at_rest()
