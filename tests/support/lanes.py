"""A lane without servers: scripted outcomes go in, and what became of the delivery comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from consumers.breaker import Breaker
from consumers.delivery import Delivery
from consumers.lane import Lane, LaneTools
from consumers.plan import ConsumerPlan
from consumers.registry import Routes
from consumers.settlement import Settlement
from consumers.telemetry import Telemetry
from inbox import Inbox, Outcome, Policy
from tests.support.property_lists import listing

Answer = Outcome | BaseException


@dataclass(slots=True)
class FakeSettlement:
    """Notes how it was settled; `is_void` as on a channel that is gone."""

    is_void: bool = False
    verb: str | None = None

    @property
    def settled(self) -> bool:
        """Whether it was settled."""
        return self.verb is not None

    async def ack(self) -> bool:
        """Ack."""
        return self._settle("ack")

    async def requeue(self) -> bool:
        """Requeue."""
        return self._settle("requeue")

    def _settle(self, verb: str) -> bool:
        assert self.verb is None, f"settled twice: {self.verb}, {verb}"
        self.verb = verb
        return not self.is_void


@dataclass(slots=True)
class FakeInbox:
    """Answers attempts by a script; the last answer repeats. Notes what the lane said about redelivery."""

    answers: list[Answer]
    redelivered: list[bool] = field(default_factory=list)
    before: Callable[[], Awaitable[object]] | None = None

    async def attempt(
        self, message: object, policy: Policy, call: object, *, redelivered: bool, keep: object
    ) -> Outcome:
        """Return or raise the next answer."""
        self.redelivered.append(redelivered)
        if self.before is not None:
            await self.before()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


@dataclass(slots=True)
class FakeParking:
    """Parks by a script: None parks, an error is raised; the last one repeats."""

    answers: list[BaseException | None] = field(default_factory=lambda: [None])
    parked: list[tuple[float | None, bool]] = field(default_factory=list)

    async def park(self, delivery: Delivery, *, remaining_s: float | None, redelivered: bool, message_id: str) -> str:
        """Note what was parked for how long."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer
        self.parked.append((remaining_s, redelivered))
        return "1s"


class FakeBreaker:
    """A breaker that is closed again as soon as somebody waits for it, and notes why it was opened."""

    def __init__(self, *, stays_open: bool = False) -> None:
        self.reasons: list[str] = []
        self.attempts_served = 0
        self._stays_open = stays_open

    def open(self, reason: str, *, by_handler: bool = False) -> None:
        """Note the reason."""
        self.reasons.append(f"reported: {reason}" if by_handler else reason)

    def served(self) -> None:
        """Note that an attempt met nothing that is in every message's way."""
        self.attempts_served += 1

    async def closed(self) -> bool:
        """Return whether attempts may start."""
        return not (self._stays_open and self.reasons)


class Bench:
    """A lane of a consumer named "work" with one delivery for it.

    Args:
        answers: What the inbox says to each attempt.
        redelivered: As the broker flags the delivery.
        void: Whether the delivery's channel is gone.
        stays_open: Whether the breaker, once opened, is only released by the end of the process.
    """

    def __init__(
        self, *answers: Answer, redelivered: bool = False, void: bool = False, stays_open: bool = False
    ) -> None:
        self.inbox = FakeInbox(list(answers))
        self.parking = FakeParking()
        self.breaker = FakeBreaker(stays_open=stays_open)
        self.settlement = FakeSettlement(is_void=void)
        self.deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        settings = SimpleNamespace(key_name="work", unknown_types="reject")
        plan = SimpleNamespace(name="work", settings=settings, policy_for=lambda _: Policy())
        self.lane = Lane(
            LaneTools(
                plan=cast(ConsumerPlan, plan),
                routes=Routes({}),
                inbox=cast(Inbox, self.inbox),
                parking=cast(Any, self.parking),
                oversize=cast(Any, SimpleNamespace(keeper=lambda message: None)),
                breaker=cast(Breaker, self.breaker),
                telemetry=Telemetry.create("tests", "0", schema=1).consumer("work", queue="work", types=()),
            ),
            self.deliveries,
        )
        self._redelivered = redelivered

    def delivery(self) -> Delivery:
        """Return the delivery of a good message."""
        return Delivery(
            body=b"{}",
            properties=listing(message_id=b"m-1", type=b"test.work", app_id=b"tests"),
            fault=None,
            exchange="shop",
            routing_key="work",
            redelivered=self._redelivered,
            queue="work",
            settlement=cast(Settlement, self.settlement),
        )

    async def run(self) -> str:
        """Let the lane work on the delivery and end, and say in a word what became of it."""
        self.deliveries.put_nowait(self.delivery())
        self.deliveries.put_nowait(None)
        await self.lane.run()
        return self.fate()

    def fate(self) -> str:
        """Return "ack", "requeue", "park" or "kept", with what a park waits for."""
        if self.parking.parked:
            assert self.settlement.verb == "ack", "a copy was parked, and the delivery not acked"
            remaining_s, _ = self.parking.parked[-1]
            return "park: contention step" if remaining_s is None else f"park: {remaining_s:g} s"
        return self.settlement.verb or "kept"
