"""What subscriptions and publishers do while a whole broker is stopped, killed, frozen or short of memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from consumers.errors import PublishUnconfirmed
from consumers.subscription_state import SubscriptionState
from servers import RabbitServer
from tests.support.eventually import eventually
from tests.support.property_lists import listing
from tests.support.subscribing import (
    Deliveries,
    ack,
    consuming,
    publishing,
    running,
    settled,
    subscription,
    until_consuming,
)
from tests.support.vhosts import Vhost


@pytest.mark.parametrize("way", ["stop_app", "restart"])
async def test_consuming_and_publishing_go_on_after_the_broker_was_away(
    own_broker: RabbitServer, own_vhost: Vhost, way: str
) -> None:
    queue = await own_vhost.declare_queue("orders")
    received = Deliveries()

    async with publishing(own_vhost.url) as publisher, consuming(own_vhost.url, queue, received) as subscribed:
        if way == "stop_app":
            await asyncio.to_thread(own_broker.stop_app)
            await eventually(lambda: not subscribed.consuming and not publisher.connected)
            await asyncio.to_thread(own_broker.start_app)
        else:
            await asyncio.to_thread(own_broker.restart)
        await until_consuming(subscribed, within_s=15.0)
        await publisher.publish(
            exchange="",
            routing_key=queue,
            body=b"after",
            properties=listing(message_id="after", delivery_mode=2),
            message_id="after",
            timeout_s=15.0,
        )
        assert (await received.next()).body == b"after"


async def test_while_the_broker_is_short_of_memory_consumers_go_on_acking_and_publishes_time_out(
    own_broker: RabbitServer, own_vhost: Vhost
) -> None:
    queue = await own_vhost.declare_queue("orders")
    for number in range(40):
        await own_vhost.publish(queue, f"message {number}".encode())
    received = Deliveries()

    async with publishing(own_vhost.url) as publisher, consuming(own_vhost.url, queue, received, prefetch=5):

        async def publish(name: str, timeout_s: float) -> None:
            properties = listing(message_id=name, delivery_mode=2)
            await publisher.publish(
                exchange="",
                routing_key="results",
                body=name.encode(),
                properties=properties,
                message_id=name,
                timeout_s=timeout_s,
            )

        await own_vhost.declare_queue("results")
        await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, 0)
        with pytest.raises(PublishUnconfirmed) as first:
            await publish("under the alarm", 0.5)
        assert first.value.sent
        with pytest.raises(PublishUnconfirmed, match="the broker blocks publishers; it was not sent"):
            await publish("later", 0.3)

        await settled(received, 40, ack)

        async def is_empty() -> bool:
            return (await own_vhost.counts(queue)).total == 0

        await eventually(is_empty, what="every ack was read under the alarm")
        assert (await own_vhost.counts("results")).total == 0

        await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, None)
        await publish("after the alarm", 15.0)
        assert publisher.statistics().connects == 1

    assert {message.body for message in await own_vhost.drain("results")} == {b"under the alarm", b"after the alarm"}


async def test_stopping_and_closing_end_in_time_while_the_broker_is_frozen(
    own_broker: RabbitServer, own_vhost: Vhost
) -> None:
    queue = await own_vhost.declare_queue("orders")
    await own_vhost.publish(queue, b"at hand")
    received, loop = Deliveries(), asyncio.get_running_loop()
    subscribed = subscription(own_vhost.url, queue, received)

    async with running(subscribed):
        delivery = await received.next()
        await asyncio.to_thread(own_broker.freeze)
        began = loop.time()
        assert not await subscribed.stop(0.5)
        assert loop.time() - began < 1.0
        assert not await delivery.settlement.ack()
        await subscribed.close()
        assert loop.time() - began < 5.0
        assert subscribed.state is SubscriptionState.CLOSED
        await asyncio.to_thread(own_broker.proceed)

    assert len(received.all) == 1


async def test_a_publisher_ends_in_time_while_the_broker_is_frozen(own_broker: RabbitServer, own_vhost: Vhost) -> None:
    loop = asyncio.get_running_loop()

    async with publishing(own_vhost.url) as publisher:
        await asyncio.to_thread(own_broker.freeze)
        # More than the sockets hold, so that the client has bytes left to send when it is told to end.
        body = b"x" * 20_000_000
        sending = asyncio.ensure_future(
            publisher.publish(
                exchange="",
                routing_key="orders",
                body=body,
                properties=listing(message_id="m-1", delivery_mode=2),
                message_id="m-1",
                timeout_s=60.0,
            )
        )
        await eventually(lambda: publisher.statistics().in_flight == 1)
        began = loop.time()

    assert loop.time() - began < 5.0
    with pytest.raises(PublishUnconfirmed):
        await sending
    await asyncio.to_thread(own_broker.proceed)


async def test_a_frozen_broker_is_noticed_by_the_probe_and_consumed_from_again_when_it_proceeds(
    own_broker: RabbitServer, own_vhost: Vhost
) -> None:
    queue = await own_vhost.declare_queue("orders")
    received = Deliveries()

    async with consuming(own_vhost.url, queue, received, heartbeat_s=60, connect_timeout_s=1.0) as subscribed:
        await asyncio.to_thread(own_broker.freeze)
        await eventually(lambda: not subscribed.consuming, what="the frozen broker is noticed")
        await asyncio.to_thread(own_broker.proceed)
        await until_consuming(subscribed)
        await own_vhost.publish(queue, b"after")
        assert (await received.next()).body == b"after"


async def test_a_delivery_held_longer_than_the_broker_allows_costs_the_channel_by_name_and_nothing_else(
    own_broker: RabbitServer, own_vhost: Vhost
) -> None:
    queue = await own_vhost.declare_queue("orders")
    await own_vhost.publish(queue, b"held")
    received = Deliveries()

    async with consumer_timeout(own_broker, milliseconds=500):
        with capture_logs() as logs:
            async with consuming(own_vhost.url, queue, received) as subscribed:
                held = await received.next()
                again = await received.next()
                assert held.settlement.is_void
                assert again.redelivered
                assert await again.settlement.ack()
                assert subscribed.statistics().consumes == 2
                assert await own_vhost.connection_count() == 2

    lost = [entry for entry in logs if entry["event"] == "subscription.lost"]
    assert "406 PRECONDITION_FAILED - delivery acknowledgement" in lost[0]["problem"]


@asynccontextmanager
async def consumer_timeout(broker: RabbitServer, *, milliseconds: int) -> AsyncIterator[None]:
    """Let the broker close channels that hold a delivery for too long, and look for them often."""
    settings = {"consumer_timeout": milliseconds, "channel_tick_interval": 200}

    def set_all(values: dict[str, str]) -> None:
        for name, value in values.items():
            broker.eval(f"application:set_env(rabbit, {name}, {value}).")

    before = {
        name: await asyncio.to_thread(broker.eval, f"{{ok, V}} = application:get_env(rabbit, {name}), V.")
        for name in settings
    }
    await asyncio.to_thread(set_all, {name: str(value) for name, value in settings.items()})
    try:
        yield
    finally:
        await asyncio.to_thread(set_all, before)
