"""A consumer's queues, exchanges and bindings as values.

The one thing that depends on the broker is its delivery limit, which would remove messages that are only being paced:
RabbitMQ 3.x has none unless one is declared, and takes -1 for "drop at the first requeue"; from 4.0 on there is one of
20, and -1 as a queue argument takes it away. (RabbitMQ documentation, "Quorum Queues", poison message handling.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from consumers.config.checks import dead_letter_queue, parking_queue, refused
from consumers.errors import ConfigError, TopologyMismatch, TopologyRefused
from consumers.plan import ConsumerPlan, FleetPlan
from consumers.secrets import shown
from consumers.topology.rules import BINDING, DELIVERY_LIMIT, NAME, check_names, check_work_queue
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

        :raises TopologyMismatch: the configured delivery limit means something else there.
        """
        arguments: dict[str, Argument] = {"x-queue-type": self.type, **self.arguments}
        if not self.paced or self.type != "quorum":
            return arguments
        has_default = _major(server_version) >= _FIRST_WITH_A_DEFAULT_LIMIT
        if self.arguments.get(DELIVERY_LIMIT) == _UNLIMITED and not has_default:
            raise TopologyMismatch(
                differences=[
                    f"queue {self.name} with {DELIVERY_LIMIT} = {_UNLIMITED}: RabbitMQ {server_version} would drop "
                    "each message at its first requeue; leave the argument out, this version has no limit by itself"
                ]
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
    """Messages of an exchange with this routing key come into the work queue.

    :param exchange_type: if the fleet declares the exchange.
    """

    exchange: str
    routing_key: str = ""
    exchange_type: str | None = None
    arguments: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What one consumer needs on the broker.

    :param dead: where copies of its terminal messages go; None if it makes none.
    """

    consumer: str
    work: Queue
    parking: tuple[Queue, ...]
    dead: Queue | None = None
    bindings: tuple[Binding, ...] = ()

    @property
    def queues(self) -> tuple[Queue, ...]:
        """All queues, the work queue first: parking queues lead back to it."""
        return (self.work, *self.parking, *(() if self.dead is None else (self.dead,)))

    def for_attempts(self) -> Topology:
        """Return what messages cannot be worked on without: a dead letter is owed by a row, and can wait."""
        return replace(self, dead=None)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges that the work queue is bound to."""
        types: dict[str, str | None] = {}
        for binding in self.bindings:
            types[binding.exchange] = binding.exchange_type or types.get(binding.exchange)
        return tuple(Exchange(name=name, type=kind) for name, kind in types.items())


def describe(
    *,
    consumer: str,
    queue: str,
    queue_type: QueueType = "quorum",
    arguments: Mapping[str, Argument] | None = None,
    bindings: Sequence[Binding] = (),
    steps_s: Sequence[float],
    redeliveries: int,
    dead_letters: bool = True,
) -> Topology:
    """Return what a consumer of these facts needs.

    :param arguments: of the work queue, besides its type.
    :param steps_s: one parking queue each, in seconds.
    :param redeliveries: how many attempts a message may need, charged or not.
    :param dead_letters: whether copies of its terminal messages are kept in a queue.
    :raises TopologyRefused: it would lose messages, or cannot be declared.
    """
    work = Queue(name=queue, type=queue_type, arguments=dict(arguments or {}), purpose="work", paced=True)
    parking = tuple(_parking(queue, step) for step in steps_s)
    # People requeue what they look at, so it is a paced queue too.
    dead = Queue(name=dead_letter_queue(queue), type="quorum", purpose="dead-letter", paced=True)
    topology = Topology(
        consumer=consumer,
        work=work,
        parking=parking,
        dead=dead if dead_letters else None,
        bindings=tuple(bindings),
    )
    exchanges = frozenset(exchange.name for exchange in topology.exchanges)
    check_names([each.name for each in topology.queues], exchanges)
    check_work_queue(
        queue,
        queue_type,
        work.arguments,
        parking=frozenset(each.name for each in parking),
        exchanges=exchanges,
        redeliveries=redeliveries,
    )
    return topology


def topology_of(plan: ConsumerPlan) -> Topology:
    """Return what a planned consumer needs.

    :raises TopologyRefused: it would lose messages, or cannot be declared.
    """
    settings = plan.settings
    return describe(
        consumer=settings.name,
        queue=settings.queue,
        queue_type=settings.queue_type,
        arguments=settings.queue_arguments,
        bindings=[
            Binding(
                exchange=bound.exchange,
                routing_key=bound.routing_key,
                exchange_type=bound.exchange_type,
                arguments=dict(bound.arguments),
            )
            for bound in settings.bindings
        ],
        steps_s=plan.parking_steps_s,
        redeliveries=max(policy.max_attempts + policy.max_aborts for policy in plan.policies.values()),
        dead_letters=settings.dead_letters,
    )


def topologies(plan: FleetPlan) -> tuple[Topology, ...]:
    """Return what all consumers of a fleet need.

    :raises ConfigError: the first setting with which messages would be lost, or nothing could be declared.
    """
    needed = []
    for consumer in plan.consumers.values():
        try:
            needed.append(topology_of(consumer))
        except TopologyRefused as error:
            raise _in_the_file(plan, consumer, error) from None
    return tuple(needed)


def _in_the_file(plan: FleetPlan, consumer: ConsumerPlan, error: TopologyRefused) -> ConfigError:
    path = f"consumers.{consumer.name}"
    key = {NAME: f"{path}.queue", BINDING: f"{path}.bindings"}.get(
        error.argument, f"{path}.queue_arguments.{error.argument}"
    )
    value = None if error.value is None else shown(error.value)
    return refused(plan.config, key, value, error.problem, error.allowed)


def _parking(work_queue: str, step_s: float) -> Queue:
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
