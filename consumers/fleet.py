"""The composition root: one process of a fleet, from its configuration to its exit code.

Everything is built here once and passed in, and everything that runs has its place in a task group below. Start: the
HTTP door first, so that probes get an answer; then the database, checked; this process's membership; the broker, its
topology verified; lifespans; consumers. A server that does not answer is waited for; one that is not what the fleet
needs ends the process, by name. Stop, on SIGTERM or SIGINT: the reverse, each step with a deadline.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from consumers.background import background
from consumers.config import FleetConfig
from consumers.duties import FleetDuties
from consumers.errors import BrokerUnavailable, ChannelLost, DatabaseUnavailable
from consumers.exhaustion_count import count_exhaustions
from consumers.health import Health
from consumers.http import application, serve
from consumers.logs import Format, configure
from consumers.plan import FleetPlan, plan
from consumers.publisher import Publisher
from consumers.sizing import HOUSEKEEPING, pool_specs
from consumers.startup import register_member, verify_broker, verify_database
from consumers.stopping import Signals, StoppedEarly
from consumers.stored import envelope_of
from consumers.telemetry import Telemetry
from consumers.topology import topologies
from consumers.worker import Worker
from inbox import (
    Backoff,
    Bound,
    Company,
    Debts,
    Deliverer,
    Inbox,
    Member,
    build,
    count_open,
    keep_partitions,
    migrations,
)
from pools import Pool, Pools

log = structlog.get_logger(__name__)

_LEAST_S = 0.1


async def run(config: FleetConfig) -> int:
    """Run one process of the fleet until it is told to stop, and return its exit code.

    :raises ConfigError, RegistrationError: the configuration and its handlers do not fit. :raises SchemaError,
    UnsafeServer, PoolOverBudget, TopologyMismatch: a server is not what this fleet needs; each says what to do.
    """
    output = configure(
        format=Format(config.log.format),
        level=config.log.level,
        stream=sys.stderr,
        service=config.service.name,
        build=build(),
    )
    planned = plan(config)
    topologies(planned)  # refuses by name what would lose messages, before anything is opened
    signals = Signals()
    telemetry = Telemetry.create(config.service.name, build(), schema=migrations()[-1].number)
    telemetry.watch_log(lambda: output.lost)
    try:
        with signals.caught():
            await _Process(planned, signals, telemetry).run()
    except* StoppedEarly:
        log.info("process.stopped", started=False)
    finally:
        telemetry.close()
    return 0


class _Process:
    """One process, while it runs."""

    def __init__(self, planned: FleetPlan, signals: Signals, telemetry: Telemetry) -> None:
        self._plan = planned
        self._config = planned.config
        self._signals = signals
        self._telemetry = telemetry
        self._health = Health()
        self._close_by: float | None = None

    async def run(self) -> None:
        """Open the door, start, work until told to stop, and stop."""
        config = self._config
        async with background() as start:
            start("http", serve(application(self._health, self._telemetry), config.http.host, config.http.port))
            start("loop_lag", self._telemetry.measure_loop())
            async with self._database() as pools:
                await self._work(pools)
        log.info("process.stopped", started=True)

    @asynccontextmanager
    async def _database(self) -> AsyncIterator[Pools]:
        """The checked database and its open pools."""
        config = self._config
        url = config.database_url()
        await self._reached(lambda: verify_database(self._plan, url))
        pools = Pools(url.reveal(), pool_specs(self._plan))
        try:
            await pools.open()
            self._telemetry.watch_pools(pools.statistics)
            yield pools
        finally:
            await pools.close(self._left_s())

    async def _work(self, pools: Pools) -> None:
        config, plan = self._config, self._plan
        housekeeping = pools[HOUSEKEEPING]
        member = Member(
            service=config.service.name, heartbeat_s=config.members.heartbeat_s, expiry_s=config.members.expiry_s
        )
        debts = Debts(housekeeping)
        broker = config.broker_url()
        await self._reached(lambda: register_member(member, housekeeping, config.database_url()))
        await self._reached(lambda: verify_broker(plan, broker))
        publisher = Publisher(
            broker.reveal(),
            name=f"{config.service.name}.publisher",
            heartbeat_s=config.broker.heartbeat_s,
            connect_timeout_s=config.broker.connect_timeout_s,
            operation_timeout_s=config.broker.operation_timeout_s,
        )
        bounds = self._bounds()
        workers: list[Worker] = []

        def paused() -> list[str]:
            return [worker.plan.settings.key_name for worker in workers if worker.paused]

        async with background() as start, self._lifespans() as lifespans:
            for name, work in (
                ("heartbeat", member.beat(housekeeping, paused=paused)),
                ("debts", debts.run()),
                (
                    "partitions",
                    keep_partitions(
                        housekeeping, receipts_s=config.receipts.retention_s, events_s=config.outbox.retention_s
                    ),
                ),
                ("publisher", publisher.run()),
                ("exhaustions", count_exhaustions(plan, housekeeping, self._telemetry)),
                ("bounds", count_open(housekeeping, bounds.values())),
                *FleetDuties(
                    plan=plan,
                    pool=housekeeping,
                    member=member,
                    telemetry=self._telemetry,
                    publisher=publisher,
                ).work(),
            ):
                self._health.task(name, start(name, work))
            company = Company()
            for name, consumer in plan.consumers.items():
                pool = pools[consumer.settings.pool]
                opening = consumer.consumer.open(
                    start_timeout_s=config.service.start_timeout_s, stop_timeout_s=config.drain.close_timeout_s
                )
                async with self._signals.unless_stopped():
                    resources = await lifespans.enter_async_context(opening)
                inbox = Inbox(
                    pool=pool,
                    member_id=member.id,
                    company=company,
                    debts=debts,
                    may_begin=bounds[name].may_begin,
                    added=bounds[name].added,
                )
                deliverer = Deliverer(
                    pool=pool,
                    member_id=member.id,
                    company=company,
                    debts=debts,
                    runner=inbox.runner,
                    read=envelope_of,
                )
                worker = Worker(
                    consumer,
                    config=config,
                    broker_url=broker.reveal(),
                    inbox=inbox,
                    deliverer=deliverer,
                    pool=pool,
                    publisher=publisher,
                    routes=consumer.consumer.resolve(resources.including(pool)),
                    telemetry=self._telemetry,
                )
                self._health.condition(name, worker.not_ready)
                workers.append(worker)
            self._health.started()
            log.info("process.started", member_id=str(member.id), consumers=sorted(plan.consumers))
            try:
                async with asyncio.TaskGroup() as running:
                    for worker in workers:
                        running.create_task(worker.run(self._signals.stop, self._signals.hurry))
                    running.create_task(self._unready_on_stop())
            finally:
                await self._leave(member, debts, housekeeping)

    def _bounds(self) -> dict[str, Bound]:
        """The bounds of unfinished messages, by consumer, told to health and telemetry."""
        bounds = {}
        for name, consumer in self._plan.consumers.items():
            bounds[name] = Bound(consumer.settings.key_name, consumer.settings.max_open)
            self._health.note(name, bounds[name].note)
            self._telemetry.watch_open(name, bounds[name])
        return bounds

    @asynccontextmanager
    async def _lifespans(self) -> AsyncIterator[AsyncExitStack]:
        """Where lifespans are opened; they close together within what is left for closing."""
        stack = AsyncExitStack()
        try:
            yield stack
        finally:
            async with asyncio.timeout(self._left_s()):
                await stack.aclose()

    def _left_s(self) -> float:
        """Return how long closing may take yet: all of it shares one deadline, which begins with its first step."""
        now = asyncio.get_running_loop().time()
        if self._close_by is None:
            self._close_by = now + self._config.drain.close_timeout_s
        return max(_LEAST_S, self._close_by - now)

    async def _unready_on_stop(self) -> None:
        await self._signals.stop.wait()
        self._health.stopping()

    async def _leave(self, member: Member, debts: Debts, pool: Pool) -> None:
        """Pay what is owed and say that this process ends in order, if the database lets us in time."""
        try:
            async with asyncio.timeout(self._left_s()):
                await debts.settle()
                await member.stop(pool)
        except Exception as error:
            # Nobody is hurt: the heartbeat expires, and whoever finds an undecided attempt then decides it.
            log.warning("member.not_stopped", member_id=str(member.id), owed=debts.count, fault=type(error).__name__)

    async def _reached(self, step: Callable[[], Awaitable[object]]) -> None:
        """Take a step that needs a server, again and again with growing pauses until the server answers.

        :raises StoppedEarly: the process was told to stop meanwhile.
        """
        pauses = Backoff(first_s=0.25, longest_s=10.0)
        async with self._signals.unless_stopped():
            while True:
                try:
                    await step()
                except (BrokerUnavailable, ChannelLost, DatabaseUnavailable) as error:
                    self._health.set("process", False, str(error))
                    log.warning("process.waiting", problem=str(error))
                    await asyncio.sleep(pauses.next_s())
                else:
                    return
