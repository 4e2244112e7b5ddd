"""A process that reconnects for months must not carry its dead connections along."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref

import pytest
from aiormq.channel import Channel
from aiormq.connection import Connection as ClientConnection

from tests.support.eventually import eventually
from tests.support.relay import RelayBefore
from tests.support.subscribing import Deliveries, consuming, publishing, until_consuming
from tests.support.vhosts import Vhost

ROUNDS = 25
OF_ONE_LIFE = 4


def alive() -> tuple[int, int]:
    """Return how many of the client's connections and channels are reachable."""
    gc.collect()
    # Other tests' objects may be among them, so callers compare.
    objects = [each for each in gc.get_objects() if not isinstance(each, weakref.ProxyTypes)]
    return (
        sum(type(each) is ClientConnection for each in objects),
        sum(type(each) is Channel for each in objects),
    )


def forget(deliveries: Deliveries) -> None:
    """Let go of the test's own deliveries, which lead to their channels; acks that a cut lost make some come again."""
    deliveries.all.clear()
    while not deliveries.arrived.empty():
        deliveries.arrived.get_nowait()


async def test_reconnects_leave_no_tasks_and_no_channels_behind(
    vhost: Vhost, relay_before: RelayBefore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What pytest keeps of each log record would keep its traceback too, and all that stands on those frames.
    monkeypatch.setattr(logging.getLogger("aiormq"), "disabled", True)
    for name in ("aiormq.connection", "aiormq.channel"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    relay, deliveries = await relay_before(vhost.url), Deliveries()
    await vhost.declare_queue("work")
    async with (
        consuming(relay.url(vhost.url), "work", deliveries) as subscription,
        publishing(relay.url(vhost.url)) as publisher,
    ):

        async def lose_the_line() -> None:
            lives = subscription.statistics().consumes
            await vhost.publish("work", b"message")
            await (await deliveries.next()).settlement.ack()
            relay.cut()
            await eventually(lambda: subscription.statistics().consumes > lives, what="a new life of the channel")
            await until_consuming(subscription)
            await eventually(lambda: publisher.connected, what="the publisher being connected again")

        for _ in range(3):
            await lose_the_line()

        async def at_rest() -> bool:
            # One life of a channel has some tasks that come and go; a leak would leave some for each of the rounds.
            return len(asyncio.all_tasks()) <= tasks + OF_ONE_LIFE

        tasks = len(asyncio.all_tasks())
        forget(deliveries)
        before = alive()
        for _ in range(ROUNDS):
            await lose_the_line()
        forget(deliveries)
        await eventually(at_rest, what=f"no more than {tasks} tasks being left after {ROUNDS} reconnects")
        after = alive()
        # One dead connection and its channels may wait for the end of a task's last step.
        assert after[0] <= before[0] + 1 and after[1] <= before[1] + 3, f"reachable: {before} before, {after} after"
