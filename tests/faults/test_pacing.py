"""Waiting in the broker: what was parked comes back as itself, in time, and the broker counts nothing meanwhile."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika
import aio_pika.abc
import pytest

from consumers.cli.exits import Exit
from consumers.properties import PropertyList
from tests.support.circling import ROUNDS
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.process import StartFleet
from tests.support.property_lists import TRUE, Header, array, binary, listing, long, moment, table, text
from tests.support.raw_publish import publish_raw
from tests.support.service import QUEUE, Service
from tests.support.subscribing import Deliveries, ack, consuming
from tests.support.vhosts import Vhost

_LONGEST = f"{QUEUE}.park.1m"

EVERY_TYPE: tuple[Header, ...] = (
    (b"boolean", TRUE),
    (b"int8", b"b" + struct.pack(">b", -5)),
    (b"uint8", b"B\xff"),
    (b"int16", b"s" + struct.pack(">h", -500)),
    (b"uint16", b"u\xff\xfe"),
    (b"int32", b"I" + struct.pack(">i", -50_000)),
    (b"uint32", b"i\xff\xff\xff\xfe"),
    (b"int64", long(-5_000_000_000)),
    (b"float", b"f" + struct.pack(">f", 0.1)),
    (b"double", b"d" + struct.pack(">d", 1e300)),
    (b"decimal", b"D\x02" + struct.pack(">i", -12_345)),
    (b"text", text("größer")),
    (b"text of any bytes", text(b"\xff\x00")),
    (b"bytes", binary(bytes(range(256)))),
    (b"array", array(TRUE, long(2), text("three"), array(b"V"))),
    (b"timestamp", moment(1_700_000_000)),
    (b"timestamp in milliseconds", moment(1_700_000_000_123)),
    (b"table", table((b"inner", table((b"innermost", table((b"when", moment(1)), (b"nothing", b"V"))))))),
    (b"void", b"V"),
    (b"", text("a header without a name")),
    (b"x-tenant", text("acme")),
    (b"x-retry-count", long(7)),
    (b"X-Death", text("not the broker's: it is written otherwise")),
)


def _messages(user: str) -> dict[str, tuple[bytes, bytes]]:
    """Return property list and body of each message that goes round."""
    full = {
        "content_type": "application/x-anything",
        "content_encoding": "gzip",
        "priority": 7,
        "correlation_id": "c-1",
        "reply_to": "replies",
        "timestamp": 1_700_000_000,
        "type": "order.placed",
        "user_id": user,
        "app_id": "shop",
    }
    forged = table((b"queue", text(QUEUE)), (b"reason", text("expired")), (b"count", long(50)))
    return {
        "every-type": (listing(EVERY_TYPE, message_id="every-type", **full), b'{"order": 1}'),
        "binary": (listing(message_id="binary", type="blob"), bytes(range(256)) * 4),
        "empty": (listing([], message_id="empty"), b""),
        "many-frames": (listing(message_id="many-frames", delivery_mode=2), random.Random(1).randbytes(300_000)),
        "copied-to-others": (
            listing(
                [(b"CC", array(text("others"))), (b"BCC", array(text("hidden")))],
                message_id="copied-to-others",
                expiration="3600000",
            ),
            b"cc",
        ),
        "forged": (listing([(b"x-death", array(forged)), (b"mine", TRUE)], message_id="forged"), b"forged"),
    }


def _entries(properties: PropertyList, *, without: Iterable[bytes] = ()) -> list[Header]:
    """Return the headers of a list, sorted as the broker does, and those that are the fleet's own left out."""
    kept = [(entry[0], properties.value_bytes(entry)) for entry in properties.entries]
    return sorted((key, value) for key, value in kept if key not in without and not key.startswith(b"inbox-"))


async def test_after_25_rounds_through_short_steps_every_message_is_there_and_byte_for_byte_itself(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(
        tmp_path,
        database,
        vhost,
        fleet,
        consumers={
            "circling": {
                "queue": QUEUE,
                "handler": "tests.support.circling:circling",
                "bindings": [{"exchange": "shop", "routing_key": "order.#", "exchange_type": "topic"}],
                "max_attempts": 100,
                "pacing": ["0s", "100ms", "150ms", "100ms"],
                "contention_step": "1m",
            }
        },
    )
    await service.prepare()
    messages = _messages(urlsplit(vhost.url).username or "")
    for name in ("others", "hidden"):
        await vhost.declare_queue(name)
        queue = await (await vhost.channel()).get_queue(name, ensure=False)
        await queue.bind("shop", name)
    process = await service.start()
    for properties, body in messages.values():
        await publish_raw(vhost, properties, body, exchange="shop", routing_key="order.placed.now")

    async def all_wait_for_long() -> bool:
        counts = await vhost.queues()
        assert counts[_LONGEST].ready == len(messages), {name: each for name, each in counts.items() if each.total}
        return True

    await eventually(all_wait_for_long, 60, what="every message being in the longest step's queue", every_s=0.1)
    await service.stopped(process)

    # Whoever was sent a copy beside us got it once, and none of the rounds sent another.
    assert [(await vhost.counts(queue)).ready for queue in ("others", "hidden")] == [1, 1]

    calls = service.calls()
    for message_id in messages:
        looks = [call["saw"] for call in calls if call["id"] == message_id]
        assert len(looks) == ROUNDS + 1
        assert all(look == looks[0] for look in looks), message_id
        assert (looks[0]["exchange"], looks[0]["routing_key"]) == ("shop", "order.placed.now")

    copies = Deliveries()
    async with consuming(vhost.url, _LONGEST, copies):
        parked = {}
        for _ in messages:
            delivery = await copies.next()
            found = PropertyList(delivery.properties)
            message_id = (found.text("message_id") or b"").decode()
            parked[message_id] = delivery
            _same(message_id, *messages[message_id], found, delivery.body)
            assert await ack(delivery)
    assert parked.keys() == messages.keys()

    # Their time has come: what was parked last is what is processed.
    await database.execute("update inbox.message set due_at = inbox.clock()")
    process = await service.start()
    for delivery in parked.values():
        await publish_raw(vhost, delivery.properties, delivery.body)
    await eventually(lambda: len(service.calls()) == len(messages) * (ROUNDS + 2), 20, what="one call more for each")

    async def processed() -> bool:
        return bool(await database.fetchval("select count(*) = $1 from inbox.receipt", len(messages)))

    await eventually(processed, what="a receipt for each")
    written = await database.fetch("select message_id, attempt from ledger")
    assert sorted(row["message_id"] for row in written) == sorted(messages)
    assert {row["attempt"] for row in written} == {ROUNDS + 2}
    await service.stopped(process)


def _same(message_id: str, sent: bytes, body: bytes, found: PropertyList, found_body: bytes) -> None:
    """Assert that a copy carries the sender's message, and by the own headers what may not stand in their place."""
    assert found_body == body
    listed = PropertyList(sent)
    moved = (b"CC", b"BCC", b"x-death")
    # The broker sorts the headers when it adds one of its own, and takes it away again with the copy.
    assert _entries(found) == _entries(listed, without=moved), message_id
    ours = {"headers", "delivery_mode", "expiration", "user_id"}
    kept = {name: value for name, value in listed.property_bytes().items() if name not in ours}
    assert {name: value for name, value in found.property_bytes().items() if name not in ours} == kept
    assert found.octet("delivery_mode") == 2
    assert "expiration" not in found and "user_id" not in found
    carried = {entry[0]: found.value_bytes(entry) for entry in found.entries if entry[0].startswith(b"inbox-")}
    expected: Mapping[bytes, bytes | None] = {
        b"inbox-exchange": text("shop"),
        b"inbox-routing-key": text("order.placed.now"),
        b"inbox-redelivered": TRUE,
        b"inbox-user-id": text(listed.text("user_id") or b"") if "user_id" in listed else None,
        b"inbox-cc": array(text("others")) if listed.find(b"CC") else None,
    }
    # BCC never comes this far: the broker takes it away before it delivers.
    assert carried == {name: value for name, value in expected.items() if value is not None}


async def test_a_message_that_waits_a_second_is_not_held_up_by_one_that_waits_a_minute(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"pacing": ["1s", "1m"]}})
    await service.prepare()
    process = await service.start()
    await service.publish("long", retry_in=[1], retry_after_s=60)

    async def long_is_parked() -> bool:
        return (await vhost.counts(_LONGEST)).ready == 1

    await eventually(long_is_parked, what="the long wait having begun")
    await service.publish("short", fail_in=[1])
    await eventually(lambda: service.starts()["short"] == 2, 15, what="the short wait being over")
    failed, again = [call["at"] for call in service.calls() if call["id"] == "short"]
    assert again - failed >= 0.9
    assert await long_is_parked()
    assert service.starts()["long"] == 1
    await service.stopped(process)


# Limits of the broker.


async def test_a_work_queue_with_a_delivery_limit_of_its_own_is_refused_by_name_and_loses_nothing(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 10}})
    await service.prepare()
    channel = await vhost.channel()
    await channel.queue_delete(QUEUE)
    await vhost.declare_queue(QUEUE, arguments={"x-delivery-limit": 3})
    # With that limit the broker would drop it at its fourth requeue.
    await service.publish("failing", fail_in=[1, 2, 3, 4, 5, 6])
    process = service.spawn()
    await process.exited(Exit.PRECONDITION)
    assert "inequivalent arg 'x-delivery-limit'" in process.output
    assert (await vhost.counts(QUEUE)).total == 1
    assert not service.calls()
    moved = await vhost.drain(QUEUE)
    await channel.queue_delete(QUEUE)
    await service.apply_topology()
    for message in moved:
        await channel.default_exchange.publish(aio_pika.Message(message.body, **_identity(message)), QUEUE)
    process = await service.start()
    await service.settled()
    await service.exact(["failing"])
    assert service.starts()["failing"] == 7
    await service.stopped(process)


def _identity(message: aio_pika.abc.AbstractIncomingMessage) -> dict[str, str | None]:
    return {"message_id": message.message_id, "type": message.type, "app_id": message.app_id}


@pytest.mark.parametrize(
    ("limit", "code", "problem"),
    [
        pytest.param(20, Exit.USAGE, "before they are used up", id="below the need"),
        pytest.param(
            -1,
            Exit.PRECONDITION,
            "drop each message at its first requeue",
            id="none, said as this broker takes it for zero",
        ),
    ],
)
async def test_a_delivery_limit_that_would_drop_messages_ends_the_start_by_name(
    limit: int, code: Exit, problem: str, service: Service, tmp_path: Path
) -> None:
    text = service.config.read_text(encoding="utf-8")
    service.config.write_text(f"{text}\n[consumers.work.queue_arguments]\nx-delivery-limit = {limit}\n", "utf-8")
    process = service.spawn()
    await process.exited(code)
    assert "x-delivery-limit" in process.output
    assert problem in process.output
    assert "Traceback" not in process.output
