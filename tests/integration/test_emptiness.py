"""Queues are seen empty when a look at each has shown nothing ready, and in no other case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from consumers.connection import Endpoint
from consumers.emptiness import Emptiness
from tests.support.eventually import eventually
from tests.support.relay import RelayBefore
from tests.support.vhosts import Vhost

WAY = ("work.park.1s", "work.park.5m", "work")


@asynccontextmanager
async def looking(url: str, queues: Mapping[str, Sequence[str]] | None = None) -> AsyncIterator[Emptiness]:
    endpoint = Endpoint(url=url, name="tests.sweep", connect_timeout_s=2.0, operation_timeout_s=2.0)
    made = Emptiness(endpoint, queues or {"work": WAY})
    try:
        yield made
    finally:
        await made.close()


async def declare(vhost: Vhost) -> None:
    for queue in WAY:
        await vhost.declare_queue(queue)


@pytest.mark.parametrize("holding", WAY)
async def test_one_ready_message_in_any_of_the_queues_is_seen(vhost: Vhost, holding: str) -> None:
    await declare(vhost)
    async with looking(vhost.url) as emptiness:
        assert await emptiness.seen("work")
        await vhost.publish(holding, b"")

        async def is_seen() -> bool:
            return not await emptiness.seen("work")

        await eventually(is_seen, what="a ready message being seen")
        await vhost.drain(holding)

        async def is_gone() -> bool:
            return await emptiness.seen("work")

        await eventually(is_gone, what="its end being seen")


async def test_the_queues_of_one_consumer_say_nothing_of_another_one(vhost: Vhost) -> None:
    for queue in ("a", "b"):
        await vhost.declare_queue(queue)
    await vhost.publish("b", b"")
    async with looking(vhost.url, {"a": ["a"], "b": ["b"]}) as emptiness:
        assert await emptiness.seen("a")
        assert not await emptiness.seen("b")


@pytest.mark.parametrize("missing", WAY)
async def test_a_queue_that_is_missing_is_not_seen_empty_and_is_once_it_is_there(vhost: Vhost, missing: str) -> None:
    for queue in WAY:
        if queue != missing:
            await vhost.declare_queue(queue)
    async with looking(vhost.url) as emptiness:
        assert not await emptiness.seen("work")
        assert not await emptiness.seen("work")
        await vhost.declare_queue(missing)
        assert await emptiness.seen("work")


async def test_a_copy_that_waits_for_a_missing_queue_is_out_of_sight_also_when_that_is_there_again(
    vhost: Vhost,
) -> None:
    """What is seen empty may not be: that is why a look counts only after the time in which the broker tries again."""
    arguments = {
        "x-message-ttl": 100,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "work",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    await vhost.declare_queue("work.park.100ms", arguments=arguments)
    await vhost.publish("work.park.100ms", b"")

    async def is_on_its_way() -> bool:
        counts = await vhost.counts("work.park.100ms")
        return (counts.ready, counts.total) == (0, 1)

    await eventually(is_on_its_way, what="a copy on its way to a queue that is missing")
    async with looking(vhost.url, {"work": ["work.park.100ms", "work"]}) as emptiness:
        assert not await emptiness.seen("work")
        await vhost.declare_queue("work")
        assert await emptiness.seen("work")
    assert await is_on_its_way()


async def test_looking_goes_on_after_the_connection_was_lost(vhost: Vhost) -> None:
    await declare(vhost)
    async with looking(vhost.url) as emptiness:
        assert await emptiness.seen("work")
        await vhost.close_all_connections()

        async def sees_again() -> bool:
            return await emptiness.seen("work")

        await eventually(sees_again, what="seeing again")


async def test_a_broker_that_is_not_there_is_not_seen_empty(vhost: Vhost, relay_before: RelayBefore) -> None:
    await declare(vhost)
    relay = await relay_before(vhost.url)
    relay.refuse()
    async with looking(relay.url(vhost.url)) as emptiness:
        assert not await emptiness.seen("work")
        await relay.open()
        assert await emptiness.seen("work")


async def test_a_line_that_is_half_open_is_noticed_in_time_and_another_one_made(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    await declare(vhost)
    relay = await relay_before(vhost.url)
    async with looking(relay.url(vhost.url)) as emptiness:
        assert await emptiness.seen("work")
        relay.half_open()
        async with asyncio.timeout(8):
            assert not await emptiness.seen("work")
        relay.heal()
        assert await emptiness.seen("work")


async def test_one_connection_serves_all_looks(vhost: Vhost) -> None:
    await declare(vhost)
    async with looking(vhost.url) as emptiness:
        for _ in range(5):
            assert await emptiness.seen("work")
        await vhost.close()

        async def is_the_only_one() -> bool:
            return await vhost.connection_count() == 1

        await eventually(is_the_only_one, what="one connection")
    await eventually(lambda: _none(vhost), what="the end of that connection")


async def _none(vhost: Vhost) -> bool:
    return await vhost.connection_count() == 0
