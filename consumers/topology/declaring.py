"""The broker's side of a topology: compare what is there with what is needed, and declare what is missing.

Nothing is ever deleted or declared differently: a queue that differs is an error that names the difference, and what
to do with the messages in it is a decision for people. AMQP shows no arguments; only declaring a queue again tells
whether they are the same, which would create it if it were missing. So its existence is asked first, and each answer
"no" costs the channel it was asked on. What policies change, AMQP does not show at all.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import structlog
from aiormq.channel import Channel

from consumers.broker_faults import CHANNEL_CODES, NOT_FOUND
from consumers.connection import Connection
from consumers.errors import ChannelLost, TopologyMismatch
from consumers.plan import FleetPlan
from consumers.topology.description import Argument, Binding, Exchange, Queue, Topology, topologies

log = structlog.get_logger(__name__)

Kind: TypeAlias = Literal["queue", "exchange", "binding"]
Request: TypeAlias = Callable[[Channel], Awaitable[object]]

_ACCESS_REFUSED = 403


class Status(enum.Enum):
    """What was found, or done; the values are for people."""

    UNCHANGED = "as configured"
    MISSING = "missing"
    DIFFERENT = "different"
    NOT_COMPARED = "exists, arguments not compared"
    NOT_VISIBLE = "not visible over AMQP"
    CREATED = "created"
    BOUND = "bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found about one thing, or done to it.

    :param detail: in words, where the status does not say all.
    """

    consumer: str
    kind: Kind
    name: str
    status: Status
    detail: str = ""

    @property
    def is_mismatch(self) -> bool:
        """Whether a consumer cannot work like this."""
        return self.status in (Status.MISSING, Status.DIFFERENT)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} is {self.status.value}" + (f" ({self.detail})" if self.detail else "")


async def verify(connection: Connection, topology: Topology) -> list[Finding]:
    """Compare what the broker has with what is needed. Changes nothing.

    :raises ChannelLost: the broker does not answer.
    :raises TopologyMismatch: with this broker's version messages would be lost.
    """
    declared = [(queue, queue.declared(connection.server_version)) for queue in topology.queues]
    async with _asking(connection, topology) as asking:
        findings = [await asking.exchange(exchange) for exchange in topology.exchanges]
        findings += [await asking.queue(queue, arguments) for queue, arguments in declared]
        findings += [
            asking.finding(
                "binding", _binding_name(topology, binding), Status.NOT_VISIBLE, "`topology apply` makes sure of it"
            )
            for binding in topology.bindings
        ]
    return findings


async def apply(connection: Connection, topology: Topology) -> list[Finding]:
    """Declare what is missing, and bind.

    :raises TopologyMismatch: something differs, or must not or may not be declared, or messages would be lost with this
        broker's version; then nothing more was changed.
    :raises ChannelLost: the broker does not answer.
    """
    found = {(finding.kind, finding.name): finding for finding in await verify(connection, topology)}
    foreign = {exchange.name for exchange in topology.exchanges if exchange.type is None}
    require(
        finding
        for finding in found.values()
        if finding.status is Status.DIFFERENT or (finding.kind == "exchange" and finding.name in foreign)
    )
    async with _asking(connection, topology) as asking:
        for exchange in topology.exchanges:
            if found["exchange", exchange.name].status is Status.MISSING:
                declaring = partial(_declare_exchange, exchange)
                found["exchange", exchange.name] = await asking.make("exchange", exchange.name, declaring)
        for queue in topology.queues:
            if found["queue", queue.name].status is Status.MISSING:
                declaring = partial(_declare_queue, queue, queue.declared(connection.server_version))
                found["queue", queue.name] = await asking.make("queue", queue.name, declaring)
        for binding in topology.bindings:
            name = _binding_name(topology, binding)
            found["binding", name] = await asking.make(
                "binding", name, partial(_bind, topology.work.name, binding), done=Status.BOUND
            )
    return list(found.values())


def require(findings: Iterable[Finding]) -> None:
    """Make sure that a consumer can work with what was found.

    :raises TopologyMismatch: names everything that is missing or differs.
    """
    mismatches = [finding for finding in findings if finding.is_mismatch]
    if mismatches:
        raise TopologyMismatch(
            differences=[str(finding) for finding in mismatches],
            missing=[
                finding.name for finding in mismatches if finding.kind == "queue" and finding.status is Status.MISSING
            ],
        )


async def verify_topologies(connection: Connection, plan: FleetPlan) -> None:
    """Make sure that the broker has what all consumers of a fleet need.

    :raises TopologyMismatch: names everything that is missing or differs.
    :raises ChannelLost: the broker does not answer.
    :raises ConfigError: see `topologies`.
    """
    findings = [finding for topology in topologies(plan) for finding in await verify(connection, topology)]
    require(findings)
    for finding in findings:
        if finding.status is Status.NOT_COMPARED:
            log.warning("topology.not_compared", consumer=finding.consumer, queue=finding.name, detail=finding.detail)


@asynccontextmanager
async def _asking(connection: Connection, topology: Topology) -> AsyncIterator[_Asking]:
    asking = _Asking(connection, topology.consumer)
    try:
        yield asking
    finally:
        await asking.close()


class _Asking:
    """Asks about one thing after the other, on one channel until a "no" ends it."""

    def __init__(self, connection: Connection, consumer: str) -> None:
        self._connection = connection
        self._consumer = consumer
        self._channel: Channel | None = None

    def finding(self, kind: Kind, name: str, status: Status, detail: str = "") -> Finding:
        return Finding(consumer=self._consumer, kind=kind, name=name, status=status, detail=detail)

    async def exchange(self, exchange: Exchange) -> Finding:
        looking = partial(_declare_exchange, exchange, passive=True)
        comparing = None if exchange.type is None else partial(_declare_exchange, exchange)
        return await self._compared("exchange", exchange.name, looking, comparing)

    async def queue(self, queue: Queue, arguments: Mapping[str, Argument]) -> Finding:
        looking = partial(_declare_queue, queue, {}, passive=True)
        return await self._compared("queue", queue.name, looking, partial(_declare_queue, queue, arguments))

    async def make(self, kind: Kind, name: str, making: Request, *, done: Status = Status.CREATED) -> Finding:
        no = await self._no(making, f"declare {kind} {name}")
        if no is None:
            return self.finding(kind, name, done)
        raise TopologyMismatch(differences=[f"{kind} {name} is missing and cannot be made: {no.problem}"])

    async def _compared(self, kind: Kind, name: str, looking: Request, comparing: Request | None) -> Finding:
        action = f"look at {kind} {name}"
        no = await self._no(looking, action)
        if no is not None:
            return self.finding(kind, name, *_absence(no))
        no = None if comparing is None else await self._no(comparing, action)
        if no is None:
            return self.finding(kind, name, Status.UNCHANGED)
        if no.code == _ACCESS_REFUSED:
            return self.finding(kind, name, Status.NOT_COMPARED, "comparing them needs the configure permission")
        return self.finding(kind, name, Status.DIFFERENT, no.problem)

    async def _no(self, request: Request, action: str) -> ChannelLost | None:
        """Return the broker's "no", None for a "yes"."""
        if self._channel is None:
            self._channel = await self._connection.open_channel()
        try:
            await self._connection.answer(request(self._channel), action=action)
        except ChannelLost as lost:
            self._channel = None
            if lost.code not in CHANNEL_CODES:
                raise
            return lost
        return None

    async def close(self) -> None:
        if self._channel is not None:
            await self._connection.close_channel(self._channel)


def _absence(no: ChannelLost) -> tuple[Status, str]:
    return (Status.MISSING, "") if no.code == NOT_FOUND else (Status.DIFFERENT, no.problem)


def _declare_exchange(exchange: Exchange, channel: Channel, *, passive: bool = False) -> Awaitable[object]:
    return channel.exchange_declare(
        exchange.name, exchange_type=exchange.type or "direct", durable=True, passive=passive
    )


def _declare_queue(
    queue: Queue, arguments: Mapping[str, Argument], channel: Channel, *, passive: bool = False
) -> Awaitable[object]:
    return channel.queue_declare(queue.name, durable=True, passive=passive, arguments=dict(arguments))


def _bind(queue: str, binding: Binding, channel: Channel) -> Awaitable[object]:
    return channel.queue_bind(queue, binding.exchange, binding.routing_key, arguments=dict(binding.arguments))


def _binding_name(topology: Topology, binding: Binding) -> str:
    arguments = ", ".join(f"{name} = {value!r}" for name, value in binding.arguments.items())
    return f"{binding.exchange} --{binding.routing_key}--> {topology.work.name}" + (
        f" ({arguments})" if arguments else ""
    )
