"""Odd messages on a real broker: poison passes, keys hold, and copies stay the same through parking queues."""

from __future__ import annotations

import struct
from uuid import UUID

import aio_pika
import pytest
from aiormq.abc import ChannelFrame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from consumers.codec import Decoded, Malformed, decode
from consumers.copies import parked_copy
from consumers.delivery import Delivery
from consumers.header_frame import header_frame_size
from consumers.origin import OWN_HEADERS
from consumers.properties import PropertyList
from consumers.publisher import Publisher
from tests.support import property_lists as wire
from tests.support.property_lists import TRUE, Header, array, binary, listing, long, nested, table, text
from tests.support.subscribing import Deliveries, ack, consuming, publishing
from tests.support.vhosts import Vhost

QUEUE = "orders"
PARKING = "orders.park.200ms"
EVENT = [
    (b"ce-id", text("e-1")),
    (b"ce-source", text("/shop")),
    (b"ce-type", text("order.placed")),
    (b"ce-specversion", text("1.0")),
]
DEATH = table((b"queue", text(QUEUE)), (b"reason", text("expired")), (b"count", long(50)))

POISON = {
    "microseconds": listing(message_id="m", timestamp=1_700_000_000_000_000),
    "negative timestamp in a header": listing([(b"t", wire.moment(-5))], message_id="m"),
    "type not UTF-8": listing(message_id="m", type=b"caf\xe9"),
    "id not UTF-8": listing(message_id=b"\xff\xfe"),
    "header name not UTF-8": listing([(b"\xff", TRUE)], message_id="m"),
    "arrays too deep": listing([(b"deep", nested(700))], message_id="m"),
}
ODD = {
    "plain": listing(message_id="m"),
    "no id": listing(type="t"),
    "empty id": listing([(b"b", TRUE), (b"a", b"L" + b"\0" * 8), (b"c", b"t\x07")], message_id=""),
    "event": listing(EVENT, content_type="application/json"),
    "event with a contradicted id": listing([(b"cloudEvents_id", text("e-2")), *EVENT]),
    "event with a number for an id": listing([(b"ce-id", long(5)), *EVENT[1:]]),
    "values that a library would change": listing(
        [
            (b"double", b"d" + struct.pack(">d", 0.1)),
            (b"huge", b"d" + struct.pack(">d", 1e300)),
            (b"bytes", text(b"\xff\0")),
            (b"array", binary(b"\xff\0")),
            (b"millis", wire.moment(1_700_000_000_123)),
            (b"n" * 200, b"B\xff"),
            (b"twice", TRUE),
            (b"twice", long(2)),
            (b"", b"V"),
            (b"decimal", b"D\x02\xff\xff\xff\xff"),
        ],
        message_id="m\0",
        priority=3,
        reply_to="r",
        correlation_id="c",
    ),
    "death that names the work queue": listing([(b"x-death", array(DEATH)), (b"x-tenant", TRUE)], message_id="m"),
    "death that is none": listing([(b"x-death", array(text("zz")))], message_id="m"),
    "flags of a second word that does not follow": bytes((0x00, 0x81)) + b"\x01m",
    "own headers of somebody else": listing([(b"inbox-redelivered", TRUE), (b"inbox-cc", text("q"))], message_id="m"),
    "near the limit": listing([(b"fill", text("x" * 130_900))], message_id="m", delivery_mode=2),
}
ODD["near the limit"] = listing(
    [(b"fill", text("x" * (130_900 + 131_010 - header_frame_size(ODD["near the limit"]))))],
    message_id="m",
    delivery_mode=2,
)


class Raw(commands.Basic.Properties):
    """Any bytes as properties, those that the product would not publish among them."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(message_id="for the client")
        self.raw = raw

    def marshal(self) -> bytes:
        return self.raw


@pytest.fixture
async def queues(vhost: Vhost) -> Vhost:
    channel = await vhost.channel()
    exchange = await channel.declare_exchange("shop", aio_pika.ExchangeType.TOPIC, durable=True)
    work = await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    await work.bind(exchange, "order.*")
    await channel.declare_queue(
        PARKING,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-message-ttl": 200,
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": QUEUE,
        },
    )
    return vhost


async def send(vhost: Vhost, raw: bytes, body: bytes = b"{}") -> None:
    underlay = await (await vhost.channel()).get_underlay_channel()
    await underlay.basic_publish(
        body, exchange="shop", routing_key="order.placed", properties=Raw(raw), mandatory=True, timeout=10
    )


def read(delivery: Delivery) -> Decoded | Malformed:
    return decode(
        consumer="invoices",
        queue=QUEUE,
        body=delivery.body,
        properties=delivery.properties,
        fault=delivery.fault,
        exchange=delivery.exchange,
        routing_key=delivery.routing_key,
        redelivered=delivery.redelivered,
    )


async def park(publisher: Publisher, delivery: Delivery, message_id: str) -> None:
    copy = parked_copy(
        delivery.properties,
        queue=QUEUE,
        exchange=delivery.exchange,
        routing_key=delivery.routing_key,
        redelivered=delivery.redelivered,
        message_id=message_id,
    )
    await publisher.publish(
        exchange="", routing_key=PARKING, body=delivery.body, properties=copy, message_id=message_id, timeout_s=10
    )


def of_the_sender(properties: bytes) -> list[Header]:
    """The sender's headers as the broker leaves them: sorted, two types rewritten."""
    listed = PropertyList(properties)
    found = []
    for key, _, value_at, end in listed.entries:
        value = listed.raw[value_at:end]
        if key in OWN_HEADERS or key.startswith((b"x-death", b"x-first-death", b"x-last-death", b"x-delivery-count")):
            continue
        if value[:1] == b"L":
            value = b"l" + value[1:]
        found.append((key, TRUE if value[:1] == b"t" and value != b"t\0" else value))
    return sorted(found)


async def test_poison_passes_between_good_messages_on_one_connection(queues: Vhost) -> None:
    for raw in POISON.values():
        await send(queues, raw)
        await send(queues, listing(message_id="good"))
    deliveries = Deliveries()
    async with consuming(queues.url, QUEUE, deliveries) as subscribed:
        for raw in POISON.values():
            poison, good = await deliveries.next(), await deliveries.next()
            assert poison.properties == raw
            found = read(poison)
            assert isinstance(found, Malformed)
            assert isinstance(read(good), Decoded)
            assert await ack(poison)
            assert await ack(good)
        assert subscribed.statistics().consumes == 1


@pytest.mark.parametrize("raw", [*POISON.values(), *ODD.values()], ids=[*POISON, *ODD])
async def test_a_message_keeps_its_key_and_its_bytes_through_requeues_and_parking(queues: Vhost, raw: bytes) -> None:
    await send(queues, raw)
    deliveries = Deliveries()
    async with consuming(queues.url, QUEUE, deliveries), publishing(queues.url) as publisher:
        delivery = await deliveries.next()
        first = read(delivery)
        for round_ in range(3):
            assert await delivery.settlement.requeue()
            delivery = await deliveries.next()
            found = read(delivery)
            assert delivery.redelivered
            assert (found.message.key, type(found)) == (first.message.key, type(first))
            await park(publisher, delivery, first.message.message_id)
            assert await ack(delivery)
            delivery = await deliveries.next()
            found = read(delivery)
            assert (delivery.exchange, delivery.routing_key, delivery.redelivered) == ("", QUEUE, False)
            assert (found.message.key, type(found)) == (first.message.key, type(first)), f"round {round_}"
            assert found.redelivered
            assert (found.message.exchange, found.message.routing_key) in (("shop", "order.placed"), ("shop", QUEUE))
            assert of_the_sender(delivery.properties) == of_the_sender(raw)
            assert delivery.body == b"{}"
        assert isinstance(first.message.key, UUID)
        assert await ack(delivery)


class PublishByAnyKey(commands.Basic.Publish):
    """A publish whose routing key is not UTF-8."""

    def marshal(self) -> bytes:
        return super().marshal().replace(b"\x03key", b"\x03k\xff\xfe")


async def test_a_routing_key_that_is_not_utf8_passes_and_comes_back(queues: Vhost) -> None:
    connection = await aio_pika.connect(queues.url, timeout=10)
    async with connection:
        channel = await connection.channel(publisher_confirms=False)
        await (await channel.get_queue(QUEUE, ensure=False)).bind("shop", "#")
        underlay = await channel.get_underlay_channel()
        header = ContentHeader(properties=Raw(listing(message_id="m")), body_size=2)
        frames = [PublishByAnyKey(exchange="shop", routing_key="key"), header, ContentBody(b"{}")]
        await underlay.write_queue.put(ChannelFrame.marshall(channel_number=underlay.number, frames=frames))
        deliveries = Deliveries()
        async with consuming(queues.url, QUEUE, deliveries), publishing(queues.url) as publisher:
            delivery = await deliveries.next()
            first = read(delivery)
            assert delivery.routing_key == "k\udcff\udcfe"
            assert first.message.routing_key == "k\\udcff\\udcfe"
            await park(publisher, delivery, "m")
            assert await ack(delivery)
            back = await deliveries.next()
            assert read(back).message.key == first.message.key
            assert read(back).message.routing_key == first.message.routing_key
            assert await ack(back)
