"""One consumer in one process: its subscription, its lanes, its breaker, and how it stops.

Deliveries go from the broker's callback into a queue that is never longer than the prefetch window, and from there to
the lanes. The drain runs its steps in one order: no new deliveries, unstarted ones given back, running attempts
finished within the deadline, the rest rolled back and given back.
"""

from __future__ import annotations

import asyncio

import structlog

from consumers.breaker import STABLE_S, Breaker
from consumers.config import DrainSettings, FleetConfig
from consumers.connection import Connection
from consumers.delivery import Delivery
from consumers.exhaustion_delivery import ExhaustionDelivery
from consumers.lane import Lane, LaneTools
from consumers.oversize import Oversize
from consumers.parking import Parking
from consumers.plan import ConsumerPlan
from consumers.publisher import Publisher
from consumers.registry import Routes
from consumers.subscription import Subscription
from consumers.telemetry import Telemetry
from consumers.topology import require, topology_of, verify
from inbox import Deliverer, Inbox, blocked
from pools import Pool

log = structlog.get_logger(__name__)

_BY_THEMSELVES = 0.6


class Worker:
    """A running consumer.

    :param pool: the consumer's pool, asked by the breaker's probe too.
    :param publisher: shared by all consumers of the process.
    :param deliverer: of the consumer's exhaustion records, on the same pool and with the same runner as the inbox.
    """

    def __init__(
        self,
        plan: ConsumerPlan,
        *,
        config: FleetConfig,
        broker_url: str,
        inbox: Inbox,
        deliverer: Deliverer,
        pool: Pool,
        publisher: Publisher,
        routes: Routes,
        telemetry: Telemetry,
    ) -> None:
        self.plan = plan
        self._inbox = inbox
        self._pool = pool
        self._publisher = publisher
        self._topology = topology_of(plan).for_attempts()
        self._drain_settings: DrainSettings = config.drain
        # A publish that is not confirmed opens the breaker again so long after it was closed.
        self._shortly_s = STABLE_S + config.broker.operation_timeout_s
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        settings = plan.settings
        self._telemetry = telemetry.consumer(
            plan.name, queue=settings.queue, types=(kind for kind in plan.consumer.handlers if kind != "*")
        )
        self.subscription = Subscription(
            broker_url,
            queue=settings.queue,
            prefetch=settings.prefetch,
            receive=self._receive,
            name=f"{config.service.name}.{plan.name}",
            takes_turns=settings.queue_arguments.get("x-single-active-consumer") is True,
            heartbeat_s=config.broker.heartbeat_s,
            connect_timeout_s=config.broker.connect_timeout_s,
            operation_timeout_s=config.broker.operation_timeout_s,
            verify=self._verify,
        )
        self.breaker = Breaker(
            plan.name,
            self._blocked,
            first_wait_s=config.breaker.first_wait_s,
            longest_wait_s=config.breaker.longest_wait_s,
            hold_s=config.breaker.hold_s,
            give_back=self.subscription.pause,
            take_again=self.subscription.resume,
        )
        parking = Parking(
            settings.queue,
            steps_s=plan.parking_steps_s,
            contention_s=settings.contention_step_s,
            publisher=publisher,
            publish_timeout_s=config.broker.operation_timeout_s,
        )
        tools = LaneTools(
            plan=plan,
            routes=routes,
            inbox=inbox,
            parking=parking,
            oversize=Oversize(
                plan,
                publisher=publisher,
                publish_timeout_s=config.broker.operation_timeout_s,
                telemetry=self._telemetry,
            ),
            breaker=self.breaker,
            telemetry=self._telemetry,
        )
        self._exhaustions = (
            None
            if routes.exhausted is None
            else ExhaustionDelivery(
                plan, routes.exhausted, deliverer=deliverer, breaker=self.breaker, telemetry=self._telemetry
            )
        )
        self._lanes = [Lane(tools, self._deliveries) for _ in range(settings.lanes)]
        self._telemetry.watch(lanes=len(self._lanes), busy=lambda: self.busy, breaker_open=lambda: self.breaker.is_open)

    @property
    def busy(self) -> int:
        """How many lanes hold a delivery."""
        return sum(lane.busy for lane in self._lanes)

    @property
    def paused(self) -> bool:
        """Whether it holds attempts back, or did a moment ago, so that deliveries may be in its hands for long."""
        return self.breaker.was_open(self._shortly_s)

    def not_ready(self) -> str | None:
        """Return why this consumer does no work now, or None."""
        if self.breaker.reason is not None:
            return f"paused: {self.breaker.reason}"
        if not self.subscription.consuming:
            return f"not consuming {self.plan.settings.queue}: {self.subscription.state.value}"
        return None

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Consume until `stop`, then drain.

        :param hurry: set when the waiting for running attempts is to be skipped.
        """
        async with asyncio.TaskGroup() as tasks:
            supervising = [tasks.create_task(self.subscription.run()), tasks.create_task(self.breaker.run())]
            lanes = [tasks.create_task(lane.run()) for lane in self._lanes]
            # It takes nothing more as soon as `stop` is set, and ends with what it has in hand.
            delivering = [] if self._exhaustions is None else [tasks.create_task(self._exhaustions.run(stop))]
            await stop.wait()
            await self._drain([*lanes, *delivering], hurry)
            await self.subscription.close()
            for task in supervising:
                task.cancel()

    def _receive(self, delivery: Delivery) -> None:
        self._telemetry.delivered()
        self._deliveries.put_nowait(delivery)

    async def _drain(self, working: list[asyncio.Task[None]], hurry: asyncio.Event) -> None:
        settings = self._drain_settings
        log.info("consumer.draining", consumer=self.plan.name, busy=self.busy, unstarted=self._deliveries.qsize())
        await self.subscription.stop(settings.cancel_timeout_s)
        given_back = await self._give_back_unstarted()
        for _ in self._lanes:
            self._deliveries.put_nowait(None)
        self.breaker.release()
        finished = asyncio.create_task(_all_done(working))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((finished, hurried), timeout=settings.deadline_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        given_up = 0 if finished.done() else self._inbox.runner.running
        if not finished.done():
            # Most of the time is for those that roll back and give back by themselves.
            self._inbox.runner.give_up()
            await asyncio.wait((finished,), timeout=settings.settle_timeout_s * _BY_THEMSELVES)
        left = [task for task in working if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=settings.settle_timeout_s * (1 - _BY_THEMSELVES))
        finished.cancel()
        log.info("consumer.drained", consumer=self.plan.name, given_back=given_back, given_up=given_up, cut=len(left))

    async def _give_back_unstarted(self) -> int:
        given_back = 0
        while not self._deliveries.empty():
            delivery = self._deliveries.get_nowait()
            if delivery is not None:
                await delivery.settlement.requeue()
                given_back += 1
        return given_back

    async def _verify(self, connection: Connection) -> None:
        """Look at the queues before each consuming: a queue that was made anew with other arguments is named."""
        require(await verify(connection, self._topology))

    async def _blocked(self) -> str | None:
        """The breaker's probe: what keeps attempts from being served, or None."""
        reason = await blocked(self._pool)
        if reason is not None:
            return reason
        return None if self._publisher.connected else "the publishing connection is down"


async def _all_done(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
