"""Publishing to a real broker: what is told to the caller is the truth, whatever happens on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumers.errors import HeadersTooLarge, PublishError, PublishRefused, PublishReturned, PublishUnconfirmed
from consumers.publisher import Publisher
from servers.relay import Direction
from tests.support.eventually import eventually
from tests.support.property_lists import listing, text
from tests.support.relay import RelayBefore
from tests.support.subscribing import publishing, running
from tests.support.vhosts import Vhost


def publish(publisher: Publisher, routing_key: str, body: bytes = b"body", **options: Any) -> Any:
    """Publish with a list of properties that holds the message id: the body, unless one is given."""
    message_id = options.pop("message_id", None) or body.decode()
    given = {
        "exchange": "",
        "routing_key": routing_key,
        "body": body,
        "properties": listing(message_id=message_id, delivery_mode=2),
        "message_id": message_id,
        "timeout_s": 5.0,
    }
    return publisher.publish(**{**given, **options})


async def answers(*publishes: Any) -> list[type[BaseException] | None]:
    given = await asyncio.gather(*publishes, return_exceptions=True)
    return [None if answer is None else type(answer) for answer in given]


async def bodies(vhost: Vhost, queue: str) -> list[bytes]:
    return [message.body for message in await vhost.drain(queue)]


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 1_000_000])
async def test_a_published_message_arrives_byte_for_byte(vhost: Vhost, size: int) -> None:
    queue = await vhost.declare_queue("orders")
    body = (b"\xce\x00\xff" * (size // 3 + 1))[:size]
    properties = listing([(b"x-tenant", text("blue"))], message_id="m-1", delivery_mode=2, timestamp=-1)

    async with publishing(vhost.url) as publisher:
        await publish(publisher, queue, body, properties=properties, message_id="m-1")

    assert await bodies(vhost, queue) == [body]


async def test_many_at_once_are_each_confirmed(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")

    async with publishing(vhost.url) as publisher:
        sent = [f"message {number}".encode() for number in range(200)]
        await asyncio.gather(*(publish(publisher, queue, body) for body in sent))

        assert sorted(await bodies(vhost, queue)) == sorted(sent)
        assert (publisher.statistics().confirmed, publisher.statistics().in_flight) == (200, 0)


async def test_an_unroutable_message_is_returned_and_the_channel_stays(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")

    async with publishing(vhost.url) as publisher:
        with pytest.raises(PublishReturned, match=r"message lost to the default exchange .*'nowhere'.*NO_ROUTE"):
            await publish(publisher, "nowhere", message_id="lost")
        await publish(publisher, queue, b"good")

        assert publisher.statistics().connects == 1
        assert publisher.statistics().returned == 1


async def test_an_unroutable_message_is_returned_whatever_its_message_id(vhost: Vhost) -> None:
    async with publishing(vhost.url) as publisher:
        for wire_id in (b"gr\xf6\xdfer", b"\xff" * 255):
            properties = listing(message_id=wire_id, delivery_mode=2)
            with pytest.raises(PublishReturned):
                await publish(publisher, "nowhere", properties=properties)


async def test_a_message_that_a_full_queue_does_not_take_is_refused(vhost: Vhost) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await vhost.declare_queue("orders", kind="classic", arguments=full)

    async with publishing(vhost.url) as publisher:
        told = [*await answers(publish(publisher, queue, b"fits"))]
        while told[-1] is None and len(told) < 20:
            told += await answers(publish(publisher, queue, f"too much {len(told)}".encode()))

        assert told[-1] is PublishRefused
        assert (await vhost.counts(queue)).ready == told.count(None)


async def test_a_missing_exchange_is_refused_and_its_neighbours_arrive(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")

    async with publishing(vhost.url) as publisher:
        told = await answers(
            *(publish(publisher, queue, f"before {number}".encode()) for number in range(5)),
            publish(publisher, "any", b"bad", exchange="not there"),
            *(publish(publisher, queue, f"after {number}".encode()) for number in range(5)),
        )

        assert told == [None] * 5 + [PublishRefused] + [None] * 5
        assert len(set(await bodies(vhost, queue))) == 10
        assert publisher.statistics().connects == 1
        with pytest.raises(PublishRefused, match="404 NOT_FOUND"):
            await publish(publisher, "any", b"bad", exchange="not there")
        await eventually(lambda: publisher.connected)
        await publish(publisher, queue, b"good")


async def test_a_missing_exchange_costs_the_channel_and_not_the_connection_however_much_is_in_flight(
    vhost: Vhost,
) -> None:
    queue = await vhost.declare_queue("orders")

    async with publishing(vhost.url) as publisher:
        for turn in range(5):
            good = [f"{turn} {number}".encode() for number in range(200)]
            publishes = [publish(publisher, queue, body, timeout_s=60.0) for body in good]
            publishes.insert(100, publish(publisher, "any", b"bad", exchange="not there", timeout_s=60.0))
            told = await answers(*publishes)

            assert told == [None] * 100 + [PublishRefused] + [None] * 100
            assert publisher.statistics().connects == 1
            assert {*good} <= {*await bodies(vhost, queue)}


async def test_a_property_that_the_broker_does_not_take_is_refused(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")

    async with publishing(vhost.url) as publisher:
        with pytest.raises(PublishRefused, match="406 PRECONDITION_FAILED"):
            await publish(
                publisher, queue, properties=listing(message_id="m-1", delivery_mode=2, user_id="somebody else")
            )


@pytest.mark.parametrize("unroutable_first", [True, False])
async def test_two_publishes_with_one_message_id_are_each_told_the_truth(vhost: Vhost, unroutable_first: bool) -> None:
    queue = await vhost.declare_queue("orders")
    keys = ["nowhere", queue] if unroutable_first else [queue, "nowhere"]

    async with publishing(vhost.url) as publisher:
        told = await answers(*(publish(publisher, key, message_id="one id") for key in keys))

    assert told == [PublishReturned if key == "nowhere" else None for key in keys]
    assert (await vhost.counts(queue)).ready == 1


async def test_a_confirm_that_does_not_come_leaves_the_publish_unconfirmed(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)

    async with publishing(relay.url(vhost.url)) as publisher:
        relay.drop(Direction.TO_CLIENT)
        with pytest.raises(PublishUnconfirmed, match="it may have arrived") as unconfirmed:
            await publish(publisher, queue, b"maybe", timeout_s=0.3)
        assert unconfirmed.value.sent
        assert publisher.statistics().in_flight == 1

        with pytest.raises(PublishUnconfirmed, match="an earlier publish of the same message id") as waiting:
            await publish(publisher, queue, b"maybe", timeout_s=0.1)
        assert not waiting.value.sent

        relay.heal()
        relay.cut()
        await publish(publisher, queue, b"maybe")
        assert await bodies(vhost, queue) == [b"maybe", b"maybe"]


async def test_a_confirm_that_comes_late_sets_its_message_id_free(vhost: Vhost, relay_before: RelayBefore) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)

    async with publishing(relay.url(vhost.url)) as publisher:
        relay.half_open()
        with pytest.raises(PublishUnconfirmed):
            await publish(publisher, queue, b"late", timeout_s=0.2)
        again = asyncio.ensure_future(publish(publisher, "nowhere", b"late"))
        relay.heal()

        with pytest.raises(PublishReturned):
            await again
        assert await bodies(vhost, queue) == [b"late"]
        assert publisher.statistics().in_flight == 0


async def test_a_connection_lost_before_the_confirm_leaves_the_publish_unconfirmed(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)

    async with publishing(relay.url(vhost.url)) as publisher:
        cut = relay.cut_on(b"the last words", Direction.TO_SERVER, "after")
        with pytest.raises(PublishUnconfirmed) as unconfirmed:
            await publish(publisher, queue, b"the last words")
        assert cut.reached.is_set()
        assert unconfirmed.value.sent

        await publish(publisher, queue, b"again")
        assert (await bodies(vhost, queue))[-1] == b"again"
        assert publisher.statistics().connects == 2


async def test_closing_the_publisher_ends_what_is_in_flight_unconfirmed(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)

    async with publishing(relay.url(vhost.url)) as publisher:
        relay.half_open()
        waiting = asyncio.ensure_future(publish(publisher, queue, b"caught", timeout_s=60.0))
        await eventually(lambda: publisher.statistics().in_flight == 1)

    with pytest.raises(PublishUnconfirmed) as unconfirmed:
        await waiting
    assert unconfirmed.value.sent


async def test_without_a_connection_nothing_is_sent_and_the_error_says_so(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)
    relay.refuse()
    publisher = Publisher(relay.url(vhost.url), name="tests", first_pause_s=0.02, longest_pause_s=0.1)

    with pytest.raises(PublishUnconfirmed, match="the publisher does not run; it was not sent"):
        await publish(publisher, queue, timeout_s=0.05)
    async with running(publisher):
        with pytest.raises(PublishUnconfirmed, match="there is no connection to the broker; it was not sent"):
            await publish(publisher, queue, timeout_s=0.2)
        waiting = asyncio.ensure_future(publish(publisher, queue, b"in time"))
        await relay.open()
        await waiting

    assert await bodies(vhost, queue) == [b"in time"]


async def test_headers_too_large_for_a_frame_are_refused_before_they_cost_the_connection(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    large = listing([(b"big", text("x" * 131_072))], message_id="m-1", delivery_mode=2)
    fitting = listing([(b"big", text("x" * 131_000))], message_id="m-2", delivery_mode=2)

    async with publishing(vhost.url) as publisher:
        with pytest.raises(HeadersTooLarge):
            await publish(publisher, queue, properties=large)
        await publish(publisher, queue, properties=fitting)

        assert publisher.statistics().connects == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"routing_key": "ä" * 128},
        {"exchange": "a[b]"},
        {"properties": listing(delivery_mode=2)},
        {"properties": listing(message_id="m-1")},
        {"properties": listing(message_id="m-1", delivery_mode=1)},
    ],
)
async def test_what_cannot_be_said_in_amqp_is_refused_before_it_is_sent(vhost: Vhost, wrong: dict[str, Any]) -> None:
    async with publishing(vhost.url) as publisher:
        with pytest.raises(ValueError, match=r"bytes|exchange|message id|not persistent"):
            await publish(publisher, **{"routing_key": "orders", **wrong})
        assert publisher.connected


async def test_a_caller_that_is_cancelled_does_not_cancel_its_message(vhost: Vhost, relay_before: RelayBefore) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)

    async with publishing(relay.url(vhost.url)) as publisher:
        relay.half_open()
        caller = asyncio.ensure_future(publish(publisher, queue, b"sent"))
        await eventually(lambda: publisher.statistics().in_flight == 1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        relay.heal()

        await eventually(lambda: publisher.statistics().in_flight == 0)
        assert await bodies(vhost, queue) == [b"sent"]


def test_all_publish_errors_are_one_family() -> None:
    assert {PublishReturned, PublishRefused, PublishUnconfirmed} == set(PublishError.__subclasses__())
