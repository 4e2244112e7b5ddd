"""Declaring and verifying queues on a real broker, and the way of a parked copy through them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from consumers.connection import Connection, Endpoint, connect
from consumers.errors import TopologyMismatch
from consumers.subscription_state import SubscriptionState
from consumers.topology import Binding, Finding, Status, Topology, apply, describe, parking_queue, require, verify
from servers import RabbitServer
from tests.support.eventually import eventually
from tests.support.property_lists import listing
from tests.support.subscribing import Deliveries, consuming, publishing, running, subscription, until, until_consuming
from tests.support.vhosts import Vhost


def topology(**options: Any) -> Topology:
    given = {"consumer": "orders", "queue": "orders", "steps_s": [0.1, 5.0], "redeliveries": 25}
    return describe(**{**given, **options})


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = await connect(Endpoint(url=url, name="tests"))
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def user_who_may_not_configure(broker: RabbitServer, vhost: Vhost) -> AsyncIterator[str]:
    """Make a user with write and read permissions only, and yield its URL."""
    name = f"reader-{vhost.name}"
    user, host, everything, nothing = (_binary(text) for text in (name, vhost.name, ".*", ""))
    users, by = "rabbit_auth_backend_internal", _binary("test")
    permissions = f"{user}, {host}, {nothing}, {everything}, {everything}, {by}"
    make = f"ok = {users}:add_user({user}, {user}, {by}), ok = {users}:set_permissions({permissions})."
    await asyncio.to_thread(broker.eval, make)
    account = vhost.url.split("//")[1].split("@")[0]
    try:
        yield vhost.url.replace(account, f"{name}:{name}")
    finally:
        await asyncio.to_thread(broker.eval, f"{users}:delete_user({user}, {by}).")


def statuses(findings: list[Finding]) -> dict[str, Status]:
    return {finding.name: finding.status for finding in findings}


async def test_applying_creates_what_is_missing_and_verifying_then_finds_it(vhost: Vhost) -> None:
    needed = topology(bindings=[Binding(exchange="shop", routing_key="order.*", exchange_type="topic")])
    binding = "shop --order.*--> orders"

    async with connected(vhost.url) as connection:
        before = await verify(connection, needed)
        with pytest.raises(TopologyMismatch) as mismatch:
            require(before)
        created = await apply(connection, needed)
        after = await verify(connection, needed)
        again = await apply(connection, needed)

    queues = ["orders", "orders.park.100ms", "orders.park.5s", "orders.dead"]
    assert statuses(before) == {**dict.fromkeys(["shop", *queues], Status.MISSING), binding: Status.NOT_VISIBLE}
    assert mismatch.value.missing == set(queues)
    assert len(mismatch.value.differences) == 5
    assert statuses(created) == {**dict.fromkeys(["shop", *queues], Status.CREATED), binding: Status.BOUND}
    assert statuses(after) == {**dict.fromkeys(["shop", *queues], Status.UNCHANGED), binding: Status.NOT_VISIBLE}
    assert statuses(again) == {**dict.fromkeys(["shop", *queues], Status.UNCHANGED), binding: Status.BOUND}
    require(after)
    await vhost.publish("order.placed", b"bound", exchange="shop")
    assert [message.body for message in await vhost.drain("orders")] == [b"bound"]


async def test_verifying_creates_nothing(vhost: Vhost) -> None:
    async with connected(vhost.url) as connection:
        await verify(connection, topology())

    assert await vhost.queues() == {}


@pytest.mark.parametrize(
    ("queue", "changed", "named"),
    [
        ("orders", {"x-queue-type": "classic"}, "inequivalent arg 'x-queue-type'"),
        ("orders", {"x-delivery-limit": 3}, "inequivalent arg 'x-delivery-limit'"),
        ("orders.park.5s", {"x-message-ttl": 4000}, "inequivalent arg 'x-message-ttl'"),
        ("orders.park.5s", {"x-overflow": "drop-head"}, "inequivalent arg 'x-overflow'"),
    ],
)
async def test_a_queue_that_differs_is_named_left_alone_and_keeps_others_from_being_made(
    vhost: Vhost, queue: str, changed: dict[str, Any], named: str
) -> None:
    needed = topology()
    described = next(each for each in needed.queues if each.name == queue)
    await (await vhost.channel()).declare_queue(
        queue, durable=True, arguments={**described.declared("3.10"), **changed}
    )

    async with connected(vhost.url) as connection:
        findings = {finding.name: finding for finding in await verify(connection, needed)}
        with pytest.raises(TopologyMismatch, match=f"queue {queue} is different .*{named}"):
            await apply(connection, needed)

        assert findings[queue].status is Status.DIFFERENT
        assert not connection.is_lost
    assert list(await vhost.queues()) == [queue]


async def test_an_exchange_of_somebody_else_has_to_be_there(vhost: Vhost) -> None:
    needed = topology(bindings=[Binding(exchange="theirs", routing_key="#")])

    async with connected(vhost.url) as connection:
        with pytest.raises(TopologyMismatch, match="exchange theirs is missing"):
            await apply(connection, needed)
        assert await vhost.queues() == {}
        await (await vhost.channel()).declare_exchange("theirs", "fanout", durable=True)

        assert statuses(await apply(connection, needed))["theirs"] is Status.UNCHANGED


async def test_an_exchange_of_another_type_is_different(vhost: Vhost) -> None:
    await (await vhost.channel()).declare_exchange("shop", "fanout", durable=True)

    async with connected(vhost.url) as connection:
        with pytest.raises(TopologyMismatch, match=r"exchange shop is different .*inequivalent arg 'type'"):
            await apply(connection, topology(bindings=[Binding(exchange="shop", exchange_type="topic")]))


async def test_without_configure_permission_queues_are_known_to_exist_and_no_more(
    vhost: Vhost, shared_broker: RabbitServer
) -> None:
    async with connected(vhost.url) as connection:
        await apply(connection, topology())
    async with user_who_may_not_configure(shared_broker, vhost) as url, connected(url) as connection:
        findings = await verify(connection, topology())
        require(findings)
        with pytest.raises(TopologyMismatch, match="queue others is missing and cannot be made: 403 ACCESS_REFUSED"):
            await apply(connection, topology(queue="others", steps_s=[]))

    assert set(statuses(findings).values()) == {Status.NOT_COMPARED}
    assert "configure permission" in findings[0].detail


async def test_a_mismatch_at_reconnect_is_a_state_with_pauses_and_ends_when_it_is_mended(vhost: Vhost) -> None:
    needed = topology(steps_s=[5.0])
    async with connected(vhost.url) as connection:
        await apply(connection, needed)
    checks = 0

    async def check(connection: Connection) -> None:
        nonlocal checks
        checks += 1
        require(await verify(connection, needed))

    async with consuming(vhost.url, "orders", Deliveries(), verify=check) as subscribed:
        channel = await vhost.channel()
        await channel.queue_delete("orders.park.5s")
        await vhost.declare_queue("orders.park.5s", arguments={"x-message-ttl": 4000})
        checks = 0
        await vhost.close_all_connections()
        await until(subscribed, SubscriptionState.TOPOLOGY_MISMATCH)
        await eventually(lambda: checks >= 3)
        assert await vhost.connection_count() <= 2, "a mismatch costs no connections"

        await (await vhost.channel()).queue_delete("orders.park.5s")
        async with connected(vhost.url) as connection:
            await apply(connection, needed)
        await until_consuming(subscribed)


async def test_a_missing_work_queue_is_told_apart_from_a_mismatch(vhost: Vhost) -> None:
    async def check(connection: Connection) -> None:
        require(await verify(connection, topology()))

    subscribed = subscription(vhost.url, "orders", Deliveries(), verify=check)
    async with running(subscribed):
        await until(subscribed, SubscriptionState.QUEUE_MISSING)


async def test_a_parked_message_comes_back_through_every_step_round_after_round(vhost: Vhost) -> None:
    rounds, properties = 25, listing(message_id="m-1", delivery_mode=2)
    needed = topology(steps_s=[0.1])
    async with connected(vhost.url) as connection:
        await apply(connection, needed)
    received = Deliveries()

    async with publishing(vhost.url) as publisher, consuming(vhost.url, "orders", received) as subscribed:
        for number in range(rounds + 1):
            step = parking_queue("orders", 0.1)
            await publisher.publish(
                exchange="", routing_key=step, body=b"x", properties=properties, message_id="m-1", timeout_s=5.0
            )
            began = asyncio.get_running_loop().time()
            delivery = await received.next()
            waited_s = asyncio.get_running_loop().time() - began
            assert 0.05 <= waited_s <= 2.0, f"round {number} waited {waited_s:.3f} s"
            assert (delivery.exchange, delivery.routing_key, delivery.redelivered) == ("", "orders", False)
            await delivery.settlement.ack()
        assert subscribed.statistics().delivered == rounds + 1
    await eventually(lambda: _is_empty(vhost))


async def test_a_short_wait_is_not_stuck_behind_a_long_one(vhost: Vhost) -> None:
    async with connected(vhost.url) as connection:
        await apply(connection, topology(steps_s=[0.1, 60.0]))
    received = Deliveries()

    async with publishing(vhost.url) as publisher, consuming(vhost.url, "orders", received):
        for name, step in (("long", 60.0), ("short", 0.1)):
            await publisher.publish(
                exchange="",
                routing_key=parking_queue("orders", step),
                body=name.encode(),
                properties=listing(message_id=name, delivery_mode=2),
                message_id=name,
                timeout_s=5.0,
            )
        assert (await received.next(within_s=5.0)).body == b"short"


async def _is_empty(vhost: Vhost) -> bool:
    return all(counts.total == 0 for counts in (await vhost.queues()).values())


def _binary(text: str) -> str:
    """An Erlang binary."""
    return f"<<{','.join(str(byte) for byte in text.encode())}>>"
