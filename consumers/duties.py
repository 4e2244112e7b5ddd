"""What one process of a service does for all of them: each a duty, tried for by every process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from consumers.config.checks import BROKER_RETRY_S, dead_letter_queue, least_slack_s
from consumers.emptiness import Emptiness
from consumers.plan import ConsumerPlan, FleetPlan
from consumers.publisher import Publisher
from consumers.republisher import Destination, Republisher
from consumers.startup import broker_endpoint
from consumers.telemetry import Telemetry
from consumers.topology import topology_of
from inbox import Cleaner, Horizons, Member, Sweeper, Swept
from inbox.duties import Duty
from pools import Pool

_DAY_S = 86_400.0
_REPUBLISH_EVERY_S = 1.0
_CLOSE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDuties:
    """The duties of one service, as one process of it takes part in them.

    :param pool: not a consumer's.
    :param publisher: the process's.
    """

    plan: FleetPlan
    pool: Pool
    member: Member
    telemetry: Telemetry
    publisher: Publisher

    def work(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Return a name and a task for each duty. A task runs until cancelled."""
        config = self.plan.config
        yield "retention", self._duty("clean", every_s=config.retention.every_s).run(self._clean())
        yield "republish", self._duty("republish", every_s=_REPUBLISH_EVERY_S).run(self._republish())
        yield "sweep", self._sweep(self._duty("sweep", every_s=config.sweep.every_s))

    def _duty(self, name: str, *, every_s: float) -> Duty:
        return Duty(
            pool=self.pool,
            service=self.plan.config.service.name,
            name=name,
            member_id=self.member.id,
            every_s=every_s,
        )

    def _clean(self) -> Callable[[], Awaitable[bool]]:
        """Remove what is past its time."""
        config = self.plan.config
        return Cleaner(
            self.pool,
            service=config.service.name,
            consumers=[consumer.key_name for consumer in config.consumers.values()],
            horizons=Horizons(
                receipts_s=config.receipts.retention_s,
                messages_s=config.retention.terminal_s,
                exhaustions_s=config.retention.exhaustions_s,
                history_s=config.retention.history_s,
                replays_s=config.retention.replays_s,
            ),
            removed=self.telemetry.removed,
        ).round

    def _republish(self) -> Callable[[], Awaitable[bool]]:
        """Publish what rows owe."""
        destinations = {}
        for consumer in self.plan.consumers.values():
            settings = consumer.settings
            destinations[settings.key_name] = Destination(
                name=consumer.name,
                queue=settings.queue,
                dead_letters=dead_letter_queue(settings.queue) if settings.dead_letters else None,
            )
        return Republisher(
            self.pool,
            self.publisher,
            destinations,
            timeout_s=self.plan.config.broker.operation_timeout_s,
            republished=lambda name, what, outcome: self.telemetry.republished(name, what.value, outcome),
        ).round

    async def _sweep(self, duty: Duty) -> None:
        """Look for what no copy comes for."""
        config, consumers = self.plan.config, self.plan.consumers.values()
        names = {consumer.settings.key_name: consumer.name for consumer in consumers}
        emptiness = Emptiness(
            broker_endpoint(self.plan, config.broker_url(), "sweep"),
            {consumer.settings.key_name: _way(consumer) for consumer in consumers},
        )
        sweeper = Sweeper(
            self.pool,
            service=config.service.name,
            member_id=self.member.id,
            consumers=[self._swept(consumer) for consumer in consumers],
            seen_empty=emptiness.seen,
            longest_gap_s=2 * duty.every_s + duty.round_timeout_s,
            swept=lambda key_name, outcome: self.telemetry.swept(names[key_name], outcome),
        )
        try:
            await duty.run(sweeper.round)
        finally:
            # Nothing is lost with it, so a stop does not wait for a broker that does not answer.
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await emptiness.close()
            except TimeoutError:
                pass

    def _swept(self, consumer: ConsumerPlan) -> Swept:
        """A copy is out of sight in the hands of a process that works on others first, or holds them in an outage, and
        on its way from a queue that the broker tries again."""
        config, timeout_s = self.plan.config, consumer.longest_handler_timeout_s
        slack_s = config.sweep.slack_s or least_slack_s(consumer.parking_steps_s[-1], timeout_s)
        return Swept(
            consumer=consumer.settings.key_name,
            policy_for=consumer.policy_for,
            slack_s=slack_s,
            quiet_s=consumer.settings.held_s(timeout_s) + config.breaker.hold_s + BROKER_RETRY_S,
            at_latest_s=config.sweep.at_latest_s or max(_DAY_S, slack_s),
        )


def _way(consumer: ConsumerPlan) -> list[str]:
    """Return a consumer's queues in the order in which a copy goes through them."""
    topology = topology_of(consumer)
    return [*(queue.name for queue in topology.parking), topology.work.name]
