"""A consumer's queues, exchanges and bindings as values.

The one thing that depends on the broker is its delivery limit, which would remove messages that are only being paced:
RabbitMQ 3.x has none unless one is declared, and takes -1 for "drop at the first requeue"; from 4.0 on there is one of
20, and -1 as a queue argument takes it away. (RabbitMQ documentation, "Quorum Queues", poison message handling.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from consumers.config.checks import parking_queue
from consumers.errors import TopologyRefused
from consumers.plan import ConsumerPlan, FleetPlan
from consumers.topology.rules import DELIVERY_LIMIT, check_bindings, check_names, check_work_queue
from inbox.durations import text

Argument: TypeAlias = str | int | float | bool
QueueType: TypeAlias = Literal["quorum", "classic"]

_UNLIMITED = -1
_FIRST_WITH_A_DEFAULT_LIMIT = 4
_MAJOR = re.compile(r"(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A durable queue.

    :param arguments: as declared, but for its type and what depends on the broker's version.
    :param purpose: for people.
    :param paced: whether messages are requeued in it, so that a delivery limit would remove them.
    """

    name: str
    type: QueueType
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    purpose: str
    paced: bool = False

    def declared(self, server_version: str) -> dict[str, Argument]:
        """Return all arguments for a broker of this version.

        :raises TopologyRefused: the configured delivery limit means something else there.
        """
        arguments: dict[str, Argument] = {"x-queue-type": self.type, **self.arguments}
        if not self.paced or self.type != "quorum":
            return arguments
        has_default = _major(server_version) >= _FIRST_WITH_A_DEFAULT_LIMIT
        if self.arguments.get(DELIVERY_LIMIT) == _UNLIMITED and not has_default:
            raise TopologyRefused(
                queue=self.name,
                argument=DELIVERY_LIMIT,
                value=_UNLIMITED,
                problem=f"RabbitMQ {server_version} would drop each message at its first requeue",
                allowed="no such argument: this version has no limit by itself",
            )
        if has_default:
            arguments.setdefault(DELIVERY_LIMIT, _UNLIMITED)
        return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An exchange that messages come through.

    :param type: if the fleet declares it; None if it belongs to somebody else and only has to be there.
    """

    name: str
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Messages of an exchange with this routing key come into a queue."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What one consumer needs on the broker."""

    consumer: str
    exchanges: tuple[Exchange, ...] = ()
    work: Queue
    parking: tuple[Queue, ...]
    bindings: tuple[Binding, ...] = ()

    @property
    def queues(self) -> tuple[Queue, ...]:
        """All queues, the work queue first: parking queues lead back to it."""
        return (self.work, *self.parking)


def topology_of(plan: ConsumerPlan) -> Topology:
    """Return what a consumer needs.

    :raises TopologyRefused: it would lose messages, or cannot be declared.
    """
    settings = plan.settings
    work = Queue(
        name=settings.queue,
        type=settings.queue_type,
        arguments=dict(settings.queue_arguments),
        purpose="work",
        paced=True,
    )
    parking = tuple(parking_queue_of(work.name, step) for step in plan.parking_steps_s)
    bindings = tuple(
        Binding(
            queue=work.name, exchange=bound.exchange, routing_key=bound.routing_key, arguments=dict(bound.arguments)
        )
        for bound in settings.bindings
    )
    types = {bound.exchange: bound.exchange_type for bound in settings.bindings if bound.exchange_type is not None}
    exchanges = tuple(
        Exchange(name=name, type=types.get(name)) for name in dict.fromkeys(bound.exchange for bound in bindings)
    )
    redeliveries = max(policy.max_attempts + policy.max_aborts for policy in plan.policies.values())
    check_names((*(queue.name for queue in (work, *parking)),), tuple(exchange.name for exchange in exchanges))
    check_bindings(work.name, tuple(exchange.name for exchange in exchanges))
    check_work_queue(
        work.name,
        work.type,
        work.arguments,
        parking=frozenset(queue.name for queue in parking),
        exchanges=frozenset(exchange.name for exchange in exchanges),
        redeliveries=redeliveries,
    )
    return Topology(consumer=settings.name, exchanges=exchanges, work=work, parking=parking, bindings=bindings)


def topologies(plan: FleetPlan) -> tuple[Topology, ...]:
    """Return what all consumers of a fleet need.

    :raises TopologyRefused: the first one that would lose messages, or cannot be declared.
    """
    return tuple(topology_of(consumer) for consumer in plan.consumers.values())


def parking_queue_of(work_queue: str, step_s: float) -> Queue:
    """Return the queue in which copies wait for one step, and from which the broker brings them back.

    At-least-once dead-lettering, or a copy could vanish on its way; it needs reject-publish, and without that falls
    back silently.
    """
    return Queue(
        name=parking_queue(work_queue, step_s),
        type="quorum",
        arguments={
            "x-message-ttl": round(step_s * 1000),
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": work_queue,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
        purpose=f"parking, {text(step_s)}",
    )


def _major(server_version: str) -> int:
    match = _MAJOR.match(server_version)
    return int(match[1]) if match else 0
