"""Running subscriptions and publishers in a test, with waits short enough for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from consumers.delivery import Delivery
from consumers.publisher import Publisher
from consumers.subscription import Subscription
from consumers.subscription_state import SubscriptionState, SubscriptionTiming
from tests.support.eventually import eventually

QUICK = SubscriptionTiming(
    first_pause_s=0.02,
    longest_pause_s=0.5,
    stable_s=5.0,
    check_every_s=0.1,
    probe_every_s=0.2,
    probe_timeout_s=1.0,
    stalled_after_s=1.0,
)


class Runs(Protocol):
    """What has a task of its own."""

    async def run(self) -> None:
        """Work until cancelled."""


class Deliveries:
    """A `receive` that keeps what it gets, in order."""

    def __init__(self) -> None:
        self.all: list[Delivery] = []
        self.arrived: asyncio.Queue[Delivery] = asyncio.Queue()

    def __call__(self, delivery: Delivery) -> None:
        self.all.append(delivery)
        self.arrived.put_nowait(delivery)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies so far."""
        return [delivery.body for delivery in self.all]

    async def next(self, within_s: float = 10.0) -> Delivery:
        """Return the next delivery that was not asked for yet."""
        async with asyncio.timeout(within_s):
            return await self.arrived.get()


@asynccontextmanager
async def running(*works: Runs) -> AsyncIterator[None]:
    """Run tasks beside a test and end them after it; one that fails fails the test."""
    tasks = [asyncio.get_running_loop().create_task(work.run()) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end


def subscription(url: str, queue: str, receive: Callable[[Delivery], None], **options: Any) -> Subscription:
    """Return a subscription with quick waits."""
    given: dict[str, Any] = {
        "prefetch": 10,
        "name": f"tests.{queue}"[:200],
        "timing": QUICK,
        "operation_timeout_s": 5.0,
    }
    return Subscription(url, queue=queue, receive=receive, **{**given, **options})


@asynccontextmanager
async def consuming(
    url: str, queue: str, receive: Callable[[Delivery], None], **options: Any
) -> AsyncIterator[Subscription]:
    """Run a subscription, consuming before the test begins."""
    made = subscription(url, queue, receive, **options)
    async with running(made):
        await until_consuming(made)
        yield made


@asynccontextmanager
async def publishing(url: str, **options: Any) -> AsyncIterator[Publisher]:
    """Run a publisher, connected before the test begins."""
    made = Publisher(url, **{"name": "tests.publisher", "first_pause_s": 0.02, "longest_pause_s": 0.5, **options})
    async with running(made):
        await eventually(lambda: made.connected, what="the publisher is connected")
        yield made


async def until_consuming(made: Subscription, within_s: float = 15.0) -> None:
    """Wait until a subscription consumes."""
    await eventually(lambda: made.consuming, within_s, what=f"the subscription is consuming (now: {made.state})")


async def until(made: Subscription, state: SubscriptionState, within_s: float = 10.0) -> None:
    """Wait until a subscription is in a state."""
    await eventually(lambda: made.state is state, within_s, what=f"the subscription is {state.value}")


async def settled(deliveries: Deliveries, count: int, settle: Callable[[Delivery], Awaitable[bool]]) -> list[Delivery]:
    """Take so many deliveries and settle each."""
    taken = []
    for _ in range(count):
        delivery = await deliveries.next()
        await settle(delivery)
        taken.append(delivery)
    return taken


async def ack(delivery: Delivery) -> bool:
    """Ack a delivery."""
    return await delivery.settlement.ack()
