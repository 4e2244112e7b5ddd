"""Copies of messages, as RabbitMQ treats them: ready, unacknowledged on one channel, or parked until a time.

A copy that was handed out and comes back is `redelivered`; one that was parked comes back through the default exchange
as if it were new, since the broker forgets. What a parked copy says of itself stands in its properties.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from consumers.delivery import Delivery
from consumers.errors import PublishUnconfirmed
from consumers.settlement import Settlement
from consumers.topology import parking_queue
from tests.invariants.stage import acting
from tests.invariants.terms import QUEUE, SOURCE
from tests.support.property_lists import listing

BODY = b"{}"


@dataclass(slots=True, eq=False)
class Copy:
    """One copy. `holder` is the channel that has it unacknowledged; `until_s` says until when it is parked.

    `spent_by`: the attempt that started on it, or on the copy whose place it took, without being counted.
    """

    message_id: str
    body: bytes
    properties: bytes
    exchange: str
    routing_key: str
    redelivered: bool = False
    holder: Channel | None = None
    until_s: float | None = None
    spent_by: UUID | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it can be delivered."""
        return self.holder is None and self.until_s is None

    def comes_back(self, *, redelivered: bool) -> None:
        """Be ready again."""
        self.holder = self.until_s = None
        self.redelivered = redelivered


class Channel:
    """One consuming channel of one process: what the product takes for its incarnation."""

    queue = QUEUE

    def __init__(self, broker: Broker) -> None:
        self.is_over = False
        self._broker = broker
        self._copies: dict[int, Copy] = {}

    @property
    def unsettled(self) -> int:
        """How many copies it holds."""
        return len(self._copies)

    def deliver(self, copy: Copy) -> Delivery:
        """Hand a copy out."""
        assert copy.is_ready
        assert not self.is_over
        tag = max(self._copies, default=0) + 1
        self._copies[tag] = copy
        copy.holder = self
        return Delivery(
            body=copy.body,
            properties=copy.properties,
            fault=None,
            exchange=copy.exchange,
            routing_key=copy.routing_key,
            redelivered=copy.redelivered,
            queue=QUEUE,
            settlement=Settlement(_incarnation(self), tag),
        )

    async def settle(self, verb: Literal["ack", "requeue"], tag: int) -> bool:
        """As the product's: nothing is settled on a channel that is gone."""
        actor = acting()
        if actor is not None and not self.is_over:
            await actor.passes(f"{verb}.before")
        if self.is_over:
            return False
        copy = self._copies.pop(tag)
        if verb == "ack":
            self._broker.copies.remove(copy)
        else:
            copy.comes_back(redelivered=True)
        return True

    def lose(self) -> None:
        """End it: the broker takes back what is unacknowledged."""
        self.is_over = True
        for copy in self._copies.values():
            copy.comes_back(redelivered=True)
        self._copies.clear()


def _incarnation(channel: Channel) -> Any:
    return channel


@dataclass(slots=True)
class Broker:
    """All copies, and the time that has passed, seconds. `sent`: how many copies of each message there ever were that
    did not take another one's place."""

    copies: list[Copy] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    now_s: float = 0.0

    @property
    def ready(self) -> list[Copy]:
        """Copies that can be delivered, oldest first."""
        return [copy for copy in self.copies if copy.is_ready]

    def send(self, message_id: str, message_type: str) -> None:
        """Let a sender publish a message, for the first time or once more."""
        self.sent[message_id] += 1
        properties = listing(message_id=message_id, type=message_type, delivery_mode=2)
        self.copies.append(Copy(message_id, BODY, properties, SOURCE, message_type))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what was parked for so long comes back."""
        self.now_s += seconds
        for copy in self.copies:
            if copy.until_s is not None and copy.until_s <= self.now_s:
                copy.comes_back(redelivered=False)

    def next_return_s(self) -> float | None:
        """Return after how long the next parked copy comes back; None if none is parked."""
        return min((copy.until_s - self.now_s for copy in self.copies if copy.until_s is not None), default=None)


class ParkingPublisher:
    """What the product takes for its publisher: its publishes go into parking queues."""

    def __init__(self, broker: Broker, steps_s: tuple[float, ...]) -> None:
        self._broker = broker
        self._steps_s = {parking_queue(QUEUE, step): step for step in steps_s}
        self.loses_confirm = False

    async def publish(
        self, *, exchange: str, routing_key: str, body: bytes, properties: bytes, message_id: str, timeout_s: float
    ) -> None:
        """Park a copy. Its confirm may get lost, and then nobody knows."""
        assert exchange == ""
        actor = acting()
        assert actor is not None
        await actor.passes("park.before")
        until_s = self._broker.now_s + self._steps_s[routing_key]
        assert actor.copy is not None
        copy = Copy(message_id, body, properties, "", QUEUE, until_s=until_s, spent_by=actor.copy.spent_by)
        self._broker.copies.append(copy)
        await actor.passes("park.after")
        if self.loses_confirm:
            self.loses_confirm = False
            raise PublishUnconfirmed(
                exchange=exchange, routing_key=routing_key, message_id=message_id, problem="no confirm", sent=True
            )
