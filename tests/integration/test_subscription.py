"""Consuming from a real broker, through everything that can happen to the line, the queue and the product itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from consumers.connection import Connection
from consumers.delivery import Delivery
from consumers.errors import SettledTwice
from consumers.subscription import Subscription
from consumers.subscription_state import SubscriptionState
from servers import RabbitServer
from servers.relay import Direction
from tests.support.eventually import eventually, throughout
from tests.support.property_lists import listing, moment
from tests.support.relay import RelayBefore
from tests.support.subscribing import (
    QUICK,
    Deliveries,
    ack,
    consuming,
    publishing,
    running,
    settled,
    subscription,
    until,
    until_consuming,
)
from tests.support.vhosts import Vhost

CONSUME_OK = b"\x00\x3c\x00\x15"
"""Class and method of basic.consume-ok, with which its frame's payload begins."""


async def published(vhost: Vhost, queue: str, count: int) -> list[bytes]:
    bodies = [f"message {number}".encode() for number in range(count)]
    for body in bodies:
        await vhost.publish(queue, body)
    return bodies


async def until_empty(vhost: Vhost, queue: str) -> None:
    async def is_empty() -> bool:
        return (await vhost.counts(queue)).total == 0

    await eventually(is_empty, what=f"{queue} is empty")


async def until_unacknowledged(vhost: Vhost, queue: str, count: int) -> None:
    async def are_so_many() -> bool:
        return (await vhost.counts(queue)).unacknowledged == count

    await eventually(are_so_many, what=f"{count} messages of {queue} are unacknowledged")


@asynccontextmanager
async def replica_stopped(broker: RabbitServer, vhost: Vhost, queue: str) -> AsyncIterator[None]:
    """Stop the one replica of a quorum queue, and start it again after the test."""
    name = f"<<{','.join(str(byte) for byte in queue.encode())}>>"
    host = f"<<{','.join(str(byte) for byte in vhost.name.encode())}>>"
    find = f"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({host}, queue, {name})), Id = amqqueue:get_pid(Q)"
    await asyncio.to_thread(broker.eval, f"{find}, ok = ra:stop_server(quorum_queues, Id).")
    try:
        yield
    finally:
        await asyncio.to_thread(broker.eval, f"{find}, ok = ra:restart_server(quorum_queues, Id).")


async def until_consuming_anew(subscribed: Subscription, *, times: int) -> None:
    """Wait until a subscription has begun to consume so many times, and does consume."""
    await eventually(lambda: subscribed.statistics().consumes == times and subscribed.consuming, 15.0)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
async def test_deliveries_come_in_order_and_acks_empty_the_queue(vhost: Vhost, kind: str) -> None:
    queue = await vhost.declare_queue("orders", kind="classic" if kind == "classic" else "quorum")
    bodies = await published(vhost, queue, 25)
    received = Deliveries()

    async with consuming(vhost.url, queue, received, prefetch=4) as subscribed:
        await settled(received, 25, ack)
        await until_empty(vhost, queue)

        assert received.bodies == bodies
        assert not any(delivery.redelivered for delivery in received.all)
        assert subscribed.statistics().acked == 25
        assert subscribed.statistics().unsettled == 0


async def test_a_delivery_carries_the_raw_property_list_and_where_it_was_published(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    await vhost.publish(queue, b"body", message_id="m-1", headers={"x-tenant": "blue"}, type="order.placed")
    received = Deliveries()

    async with consuming(vhost.url, queue, received):
        delivery = await received.next()

        assert (delivery.body, delivery.fault) == (b"body", None)
        assert (delivery.exchange, delivery.routing_key, delivery.queue) == ("", queue, queue)
        assert b"x-tenant" in delivery.properties
        assert b"m-1" in delivery.properties
        assert b"body" not in repr(delivery).encode()


async def test_the_prefetch_bounds_what_is_unacknowledged(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    await published(vhost, queue, 12)
    received = Deliveries()

    async with consuming(vhost.url, queue, received, prefetch=5):
        await until_unacknowledged(vhost, queue, 5)
        assert (await vhost.counts(queue)).ready == 7
        assert len(received.all) == 5

        await received.all[0].settlement.ack()
        await eventually(lambda: len(received.all) == 6)
        assert (await vhost.counts(queue)).unacknowledged == 5


async def test_a_requeued_delivery_comes_again_flagged(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    await vhost.publish(queue, b"again")
    received = Deliveries()

    async with consuming(vhost.url, queue, received):
        assert await (await received.next()).settlement.requeue()
        again = await received.next()

        assert (again.body, again.redelivered) == (b"again", True)


async def test_a_second_settlement_is_a_named_error_and_the_channel_lives(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    await published(vhost, queue, 2)
    received = Deliveries()

    async with consuming(vhost.url, queue, received) as subscribed:
        first, second = await received.next(), await received.next()
        await first.settlement.ack()
        with pytest.raises(SettledTwice, match="requeue: ack was called before"):
            await first.settlement.requeue()

        assert await second.settlement.ack()
        await until_empty(vhost, queue)
        assert subscribed.statistics().consumes == 1


async def test_a_settlement_of_a_lost_channel_is_dropped_and_the_new_channel_survives(
    vhost: Vhost, shared_broker: RabbitServer
) -> None:
    queue = await vhost.declare_queue("orders")
    bodies = await published(vhost, queue, 6)
    received = Deliveries()

    async with consuming(vhost.url, queue, received, prefetch=6) as subscribed:
        lost = [await received.next() for _ in range(6)]
        await vhost.close_all_connections()
        await until_consuming_anew(subscribed, times=2)
        again = [await received.next() for _ in range(6)]

        assert all(delivery.settlement.is_void for delivery in lost)
        assert [await delivery.settlement.ack() for delivery in lost] == [False] * 6
        assert [await delivery.settlement.ack() for delivery in again] == [True] * 6
        await until_empty(vhost, queue)
        assert sorted(delivery.body for delivery in again) == bodies
        assert subscribed.statistics().dropped_settlements == 6
        assert subscribed.statistics().consumes == 2
    assert "unknown delivery tag" not in _log_of(shared_broker, vhost)


async def test_work_on_a_delivery_is_not_cancelled_by_the_loss_of_its_channel(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    await vhost.publish(queue, b"long work")
    go_on, tasks = asyncio.Event(), []

    async def work() -> str:
        await go_on.wait()
        return "finished"

    def receive(_: Delivery) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work()))

    async with consuming(vhost.url, queue, receive) as subscribed:
        await eventually(lambda: tasks)
        await vhost.close_all_connections()
        await until_consuming_anew(subscribed, times=2)
        await eventually(lambda: len(tasks) == 2)
        go_on.set()

        assert await asyncio.gather(*tasks) == ["finished", "finished"]


async def test_every_loss_of_the_connection_ends_in_consuming_again(
    vhost: Vhost, rounds: Callable[[int, int], int]
) -> None:
    queue = await vhost.declare_queue("orders")
    received = Deliveries()

    async with consuming(vhost.url, queue, received) as subscribed:
        for number in range(rounds(6, 20)):
            body = f"round {number}".encode()
            await vhost.close_all_connections()
            await until_consuming_anew(subscribed, times=number + 2)
            await vhost.publish(queue, body)
            while (delivery := await received.next()).body != body:
                await delivery.settlement.ack()
            await delivery.settlement.ack()
            assert (await vhost.counts(queue)).consumers == 1


async def test_a_consumer_that_the_broker_cancelled_consumes_again_when_its_queue_is_back(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    received, states = Deliveries(), []

    async with consuming(vhost.url, queue, received, on_change=states.append) as subscribed:
        await (await vhost.channel()).queue_delete(queue)
        await until(subscribed, SubscriptionState.QUEUE_MISSING)
        assert not subscribed.consuming
        assert await vhost.queues() == {}, "a missing queue is not the subscription's to declare"

        await vhost.declare_queue(queue, arguments={"x-max-length": 1000})
        await vhost.publish(queue, b"after")
        assert (await received.next()).body == b"after"
        assert subscribed.statistics().server_cancels == 1
        assert SubscriptionState.QUEUE_MISSING in states


async def test_a_queue_that_is_deleted_and_made_anew_at_once_is_consumed_from_to_its_last_message(vhost: Vhost) -> None:
    prefetch = 3
    queue = await vhost.declare_queue("orders")
    received = Deliveries()
    async with consuming(vhost.url, queue, received, prefetch=prefetch) as subscribed:
        for number in range(2 * prefetch):
            await vhost.publish(queue, f"old {number}".encode())
        held = [await received.next() for _ in range(prefetch)]
        await (await vhost.channel()).queue_delete(queue)
        await vhost.declare_queue(queue)
        bodies = {f"new {number}".encode() for number in range(4 * prefetch)}
        for body in bodies:
            await vhost.publish(queue, body)
        for delivery in held:
            await delivery.settlement.ack()
        while bodies:
            delivery = await received.next(20)
            bodies.discard(delivery.body)
            await delivery.settlement.ack()
        await eventually(lambda: _is_empty(vhost, queue))
        assert subscribed.consuming


async def _is_empty(vhost: Vhost, queue: str) -> bool:
    return not (await vhost.counts(queue)).total


async def test_a_consumer_that_only_waits_for_its_turn_is_left_alone(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders", arguments={"x-single-active-consumer": True})
    first, second = Deliveries(), Deliveries()
    async with (
        consuming(vhost.url, queue, first, prefetch=1, takes_turns=True),
        consuming(vhost.url, queue, second, takes_turns=True) as standing_by,
    ):
        await vhost.publish(queue, b"held")
        await vhost.publish(queue, b"waiting")
        held = await first.next()

        async def undisturbed() -> bool:
            return standing_by.statistics().consumes == 1

        await throughout(undisturbed, 2 * QUICK.stalled_after_s, what="the one that stands by being left alone")
        await held.settlement.ack()
        await (await first.next()).settlement.ack()


async def test_a_queue_that_is_missing_at_the_start_is_waited_for(vhost: Vhost) -> None:
    received = Deliveries()
    subscribed = subscription(vhost.url, "later", received)

    async with running(subscribed):
        await until(subscribed, SubscriptionState.QUEUE_MISSING)
        await vhost.declare_queue("later")
        await until_consuming(subscribed)


async def test_a_receive_that_fails_leaves_nothing_unsettled(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.consumer_channel.RECEIVE_FAULT_PAUSE_S", 0.05)
    queue = await vhost.declare_queue("orders")
    await published(vhost, queue, 4)
    kept, failing = Deliveries(), True

    def receive(delivery: Delivery) -> None:
        if failing:
            raise RuntimeError("a fault of the product")
        kept(delivery)

    async with consuming(vhost.url, queue, receive, prefetch=3) as subscribed:
        await eventually(lambda: subscribed.statistics().failed_receives >= 4)
        failing = False
        await settled(kept, 4, ack)
        await until_empty(vhost, queue)
        assert subscribed.statistics().consumes == 1


async def test_messages_that_the_client_cannot_decode_flow_with_their_neighbours(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    poisons = [
        listing(message_id="microseconds", delivery_mode=2, timestamp=1_700_000_000_000_000),
        listing(message_id="latin-1", delivery_mode=2, type="größer".encode("latin-1")),
        listing([(b"at", moment(-1))], message_id="before 1970", delivery_mode=2),
    ]
    async with publishing(vhost.url) as publisher:
        for number, poison in enumerate(poisons):
            await vhost.publish(queue, f"good {number}".encode())
            await publisher.publish(
                exchange="", routing_key=queue, body=b"poison", properties=poison, message_id="poison", timeout_s=5.0
            )
    received = Deliveries()

    async with consuming(vhost.url, queue, received, prefetch=3) as subscribed:
        taken = await settled(received, 6, ack)
        await until_empty(vhost, queue)

        assert [delivery.fault is not None for delivery in taken] == [False, True] * 3
        assert [delivery.properties for delivery in taken if delivery.fault] == poisons
        assert subscribed.statistics().consumes == 1


async def test_stopping_takes_no_more_and_lets_what_is_at_hand_be_settled(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    await published(vhost, queue, 300)
    received = Deliveries()
    subscribed = subscription(vhost.url, queue, received, prefetch=40)

    async with running(subscribed):
        await settled(received, 60, ack)
        assert await subscribed.stop(5.0)
        assert subscribed.state is SubscriptionState.STOPPED
        at_hand = len(received.all)
        while not received.arrived.empty():
            delivery = received.arrived.get_nowait()
            settle = delivery.settlement.ack if delivery.body.endswith(b"1") else delivery.settlement.requeue
            assert await settle()
        await subscribed.close()

    assert len(received.all) == at_hand
    assert subscribed.state is SubscriptionState.CLOSED
    counts = await vhost.counts(queue)
    assert counts.unacknowledged == 0
    assert counts.ready == 300 - subscribed.statistics().acked
    assert (await vhost.connection_count()) == 1


async def test_stopping_before_the_broker_has_confirmed_the_consumer_waits_for_it(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    queue = await vhost.declare_queue("orders")
    await published(vhost, queue, 20)
    relay = await relay_before(vhost.url)
    consume_ok = relay.hold_on(CONSUME_OK, Direction.TO_CLIENT)
    received = Deliveries()
    subscribed = subscription(relay.url(vhost.url), queue, received, prefetch=100)

    async with running(subscribed):
        await asyncio.wait_for(consume_ok.reached.wait(), 5.0)
        stopping = asyncio.ensure_future(subscribed.stop(5.0))
        await asyncio.wait([stopping], timeout=0.05)
        assert not stopping.done()
        consume_ok.release()
        assert await stopping
        await vhost.publish(queue, b"too late")
        await subscribed.close()

    assert b"too late" not in received.bodies

    async def all_are_back() -> bool:
        return (await vhost.counts(queue)).ready == 21

    # The broker gives back what a closed connection held some time after it has confirmed the close.
    await eventually(all_are_back, what="the broker giving back what the connection held")


@pytest.mark.parametrize("at", ["connecting", "verifying"])
async def test_closing_does_not_wait_for_what_has_not_answered_yet(
    vhost: Vhost, relay_before: RelayBefore, at: str
) -> None:
    relay = await relay_before(vhost.url)
    verifying = asyncio.Event()

    async def verify(_: Connection) -> None:
        verifying.set()
        await asyncio.Event().wait()

    subscribed = subscription(relay.url(vhost.url), "orders", Deliveries(), connect_timeout_s=60.0, verify=verify)
    if at == "connecting":
        relay.half_open()
    async with running(subscribed):
        await eventually(lambda: relay.accepted == 1 if at == "connecting" else verifying.is_set())
        began = asyncio.get_running_loop().time()
        assert await subscribed.stop(5.0)
        await subscribed.close()

        assert asyncio.get_running_loop().time() - began < 1.0
        assert subscribed.state is SubscriptionState.CLOSED


async def test_a_queue_without_a_leader_is_waited_for_by_name(vhost: Vhost, shared_broker: RabbitServer) -> None:
    queue = await vhost.declare_queue("orders")
    subscribed = subscription(vhost.url, queue, Deliveries())

    with capture_logs() as logs:
        async with replica_stopped(shared_broker, vhost, queue), running(subscribed):
            await eventually(lambda: any("541 INTERNAL_ERROR" in str(entry) for entry in logs), within_s=20.0)
            assert not subscribed.consuming
    assert any("a queue has no leader or is damaged" in str(entry) for entry in logs)


async def test_acks_sent_just_before_a_cancelled_run_are_not_lost(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    await published(vhost, queue, 200)
    received = Deliveries()

    async with consuming(vhost.url, queue, received, prefetch=200):
        await eventually(lambda: len(received.all) == 200)
        for delivery in received.all:
            await delivery.settlement.ack()

    assert (await vhost.counts(queue)).total == 0


async def test_pausing_gives_everything_back_and_resuming_consumes_again(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    bodies = await published(vhost, queue, 5)
    received = Deliveries()

    async with consuming(vhost.url, queue, received, prefetch=5) as subscribed:
        held = [await received.next() for _ in range(5)]
        await subscribed.pause()
        await until(subscribed, SubscriptionState.PAUSED)
        await until_unacknowledged(vhost, queue, 0)
        assert not subscribed.consuming
        assert (await vhost.counts(queue)).ready == 5
        assert not await held[0].settlement.ack()
        await subscribed.pause()

        subscribed.resume()
        again = await settled(received, 5, ack)
        await until_empty(vhost, queue)
        assert [delivery.body for delivery in again] == bodies
        assert await vhost.connection_count() == 2, "the connection outlives a pause"


def test_a_prefetch_of_zero_is_refused_since_it_means_no_limit() -> None:
    with pytest.raises(ValueError, match="prefetch must be at least 1"):
        subscription("amqp://broker/", "orders", Deliveries(), prefetch=0)


async def test_a_paused_subscription_can_be_stopped_and_closed(vhost: Vhost) -> None:
    queue = await vhost.declare_queue("orders")
    subscribed = subscription(vhost.url, queue, Deliveries())

    async with running(subscribed):
        await until_consuming(subscribed)
        await subscribed.pause()
        assert await subscribed.stop(1.0)
        subscribed.resume()
        await subscribed.close()
        assert subscribed.state is SubscriptionState.CLOSED


async def test_a_subscription_that_never_ran_stops_and_closes_at_once(vhost: Vhost) -> None:
    subscribed = subscription(vhost.url, "orders", Deliveries())

    assert await subscribed.stop(1.0)
    await subscribed.close()
    await subscribed.run()

    assert subscribed.state is SubscriptionState.CLOSED
    assert subscribed.statistics().consumes == 0


async def test_a_half_open_line_is_noticed_by_the_probe_long_before_the_heartbeat(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)
    received = Deliveries()

    async with consuming(relay.url(vhost.url), queue, received, heartbeat_s=60) as subscribed:
        relay.half_open()
        await eventually(lambda: not subscribed.consuming, 5.0, what="the half-open line is noticed")
        relay.heal()
        await until_consuming(subscribed)
        await vhost.publish(queue, b"after")
        assert (await received.next()).body == b"after"


async def test_a_line_that_resets_at_the_consume_is_built_anew(vhost: Vhost, relay_before: RelayBefore) -> None:
    queue = await vhost.declare_queue("orders")
    relay = await relay_before(vhost.url)
    consume_ok = relay.cut_on(CONSUME_OK, Direction.TO_CLIENT)

    async with consuming(relay.url(vhost.url), queue, Deliveries()) as subscribed:
        assert consume_ok.reached.is_set()
        assert subscribed.statistics().consumes == 1
        assert (await vhost.counts(queue)).consumers == 1


async def test_a_consumer_on_a_queue_that_another_holds_exclusively_waits_for_it(vhost: Vhost) -> None:
    channel = await vhost.channel()
    await channel.declare_queue("mine", exclusive=True, arguments={"x-queue-type": "classic"})
    subscribed = subscription(vhost.url, "mine", Deliveries())

    async with running(subscribed):
        await until(subscribed, SubscriptionState.WAITING)
        await channel.queue_delete("mine")
        await until(subscribed, SubscriptionState.QUEUE_MISSING)
        assert await vhost.connection_count() == 2, "a refused channel costs no connection"


def _log_of(broker: RabbitServer, vhost: Vhost) -> str:
    return "\n".join(
        line for line in broker.log.read_text(encoding="utf-8", errors="replace").splitlines() if vhost.name in line
    )
