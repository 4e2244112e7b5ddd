"""A lane: one worker of a consumer, one delivery at a time, from the broker's hand to its settlement.

Lanes are the product's own tasks, so a lost channel never cancels one. A delivery is acked only after a commit that
settles its message, or after its next copy is confirmed by the broker. Whatever goes wrong in between, it is kept or
requeued; reject-without-requeue is never used.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import assert_never

import structlog

from consumers.breaker import Breaker
from consumers.calling import Call
from consumers.codec import Decoded, Malformed, decode
from consumers.delivery import Delivery
from consumers.errors import HeadersTooLarge, MalformedProperties, PublishError
from consumers.logs import attempt_settled
from consumers.oversize import Oversize
from consumers.parking import Parking
from consumers.plan import ConsumerPlan
from consumers.registry import Routes
from consumers.telemetry import ConsumerTelemetry, Operation, outcome_label
from inbox import Inbox, Outcome, State
from inbox.outcomes import (
    Absorbed,
    Contended,
    Duplicate,
    Early,
    Ended,
    Full,
    Processed,
    Stopped,
    Unavailable,
    Undecided,
    Unkept,
    Unknown,
    Waiting,
)
from inbox.points import reach

log = structlog.get_logger(__name__)

_UNPARKABLE_PAUSE_S = 1.0
_BUG_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTools:
    """What all lanes of a consumer share."""

    plan: ConsumerPlan
    routes: Routes
    inbox: Inbox
    parking: Parking
    oversize: Oversize
    breaker: Breaker
    telemetry: ConsumerTelemetry


class Lane:
    """One worker. `run` it in a task of a group."""

    def __init__(self, tools: LaneTools, deliveries: asyncio.Queue[Delivery | None]) -> None:
        self._tools = tools
        self._deliveries = deliveries
        self.busy = False

    async def run(self) -> None:
        """Work on deliveries until None comes: the drain's sign that no more will."""
        while True:
            delivery = await self._deliveries.get()
            if delivery is None:
                return
            self.busy = True
            try:
                await self._settled(delivery)
            finally:
                self.busy = False

    async def _settled(self, delivery: Delivery) -> None:
        """Work on one delivery; whatever happens it ends settled, or its channel is gone."""
        try:
            await self._work(delivery)
        except Exception:
            # A fault of the product itself. The message must not be lost and must not spin.
            log.exception("lane.fault", consumer=self._tools.plan.name, queue=delivery.queue)
            await asyncio.sleep(_BUG_PAUSE_S)
            if not delivery.settlement.settled:
                await delivery.settlement.requeue()
        except BaseException:
            if not delivery.settlement.settled:
                await delivery.settlement.requeue()
            raise

    async def _work(self, delivery: Delivery) -> None:
        reach("delivery.received")
        tools = self._tools
        decoded = decode(
            consumer=tools.plan.settings.key_name,
            queue=delivery.queue,
            body=delivery.body,
            properties=delivery.properties,
            fault=delivery.fault,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            redelivered=delivery.redelivered,
        )
        redelivered = decoded.redelivered
        while not delivery.settlement.is_void:
            if not await tools.breaker.closed():
                await self._requeue(delivery)
                return
            if delivery.settlement.is_void:
                break
            outcome = await self._attempt(decoded, redelivered=redelivered)
            self._tell_breaker(outcome)
            if not isinstance(outcome, Unavailable):
                await self._settle(delivery, decoded, outcome, redelivered=redelivered)
                return
            # Nothing but the database is at fault: keep the delivery, and try again when it is back. An attempt that
            # had started counts as history, so the next one is counted before it runs.
            redelivered = redelivered or outcome.started
        # The broker has the message back already.

    def _tell_breaker(self, outcome: Outcome) -> None:
        breaker = self._tools.breaker
        match outcome:
            case Unavailable(fault=fault):
                breaker.open(fault)
            case Waiting(pauses=True, error_class=name):
                breaker.open(f"a handler met {name}", by_handler=True)
            case Ended(pauses=True, error_class=name):
                breaker.open(f"a handler met {name}", by_handler=True)
            case Processed() | Waiting(charged=True) | Ended(state=State.EXHAUSTED, error_class=str()):
                breaker.served()
            case _:
                pass  # no handler ran, or it ended before it had met anything

    async def _attempt(self, decoded: Decoded | Malformed, *, redelivered: bool) -> Outcome:
        tools = self._tools
        message = decoded.message
        began = perf_counter()
        correlation_id = decoded.correlation_id if isinstance(decoded, Decoded) else None
        with tools.telemetry.process(message, redelivered=redelivered, correlation_id=correlation_id) as span:
            call = Call(
                decoded,
                tools.routes,
                consumer=tools.plan.name,
                ignore_unknown=tools.plan.settings.unknown_types == "ignore",
                span=span,
            )
            outcome = await tools.inbox.attempt(
                message,
                tools.plan.policy_for(message.type),
                call,
                redelivered=redelivered,
                keep=tools.oversize.keeper(message),
            )
            label = outcome_label(outcome)
            error_class = _error_class(outcome)
            span.settle(label, error_class=error_class)
        duration_s = perf_counter() - began
        tools.telemetry.settled(
            label,
            message_type=message.type,
            duration_s=duration_s,
            error_class=error_class,
            critical_time_s=_age_s(decoded) if isinstance(outcome, Processed) else None,
        )
        attempt_settled(
            log,
            consumer=tools.plan.name,
            message_id=message.message_id,
            type=message.type,
            attempt=(outcome.number or None) if isinstance(outcome, (Processed, Waiting, Ended)) else None,
            outcome=label,
            error_class=error_class,
            duration_s=duration_s,
            delay_s=outcome.delay_s if isinstance(outcome, Waiting) else None,
            redelivered=redelivered,
        )
        return outcome

    async def _settle(
        self, delivery: Delivery, decoded: Decoded | Malformed, outcome: Outcome, *, redelivered: bool
    ) -> None:
        match outcome:
            case Processed() | Duplicate() | Absorbed() | Ended():
                await self._ack(delivery)
            case Contended() | Undecided():
                await self._park(delivery, decoded, None, redelivered=redelivered)
            case Early(remaining_s):
                await self._park(delivery, decoded, remaining_s, redelivered=redelivered)
            case Full() | Unkept():
                await self._park(delivery, decoded, math.inf, redelivered=redelivered)
            case Waiting(delay_s=delay_s) if delay_s > 0:
                await self._park(delivery, decoded, delay_s, redelivered=redelivered)
            case Waiting() | Unknown() | Stopped():
                await self._requeue(delivery)
            case Unavailable():
                raise AssertionError("an unavailable database keeps its delivery")
            case _:
                assert_never(outcome)

    async def _ack(self, delivery: Delivery) -> None:
        reach("ack.before")
        with self._tools.telemetry.settling(Operation.ACK):
            if not await delivery.settlement.ack():
                self._tools.telemetry.settlement_dropped()
        reach("ack.after")

    async def _requeue(self, delivery: Delivery) -> None:
        with self._tools.telemetry.settling(Operation.REQUEUE):
            if not await delivery.settlement.requeue():
                self._tools.telemetry.settlement_dropped()

    async def _park(
        self, delivery: Delivery, decoded: Decoded | Malformed, remaining_s: float | None, *, redelivered: bool
    ) -> None:
        tools = self._tools
        while not delivery.settlement.is_void:
            try:
                with tools.telemetry.publishing(f"{delivery.queue}.park", traceparent=decoded.message.traceparent):
                    step = await tools.parking.park(
                        delivery,
                        remaining_s=remaining_s,
                        redelivered=redelivered,
                        message_id=decoded.message.message_id,
                    )
            except (HeadersTooLarge, MalformedProperties) as error:
                # No copy can be made of it: it waits here, unacked, and goes back to the broker.
                self._warn("message.not_parkable", decoded, error)
                await asyncio.sleep(_UNPARKABLE_PAUSE_S)
                await self._requeue(delivery)
                return
            except PublishError as error:
                self._warn("message.not_parked", decoded, error)
                tools.breaker.open(f"parking: {error}")
                if not await tools.breaker.closed():
                    await self._requeue(delivery)
                    return
            else:
                tools.telemetry.parked(step)
                await self._ack(delivery)
                return

    def _warn(self, event: str, decoded: Decoded | Malformed, error: Exception) -> None:
        log.warning(event, consumer=self._tools.plan.name, message_id=decoded.message.message_id, problem=str(error))


def _age_s(decoded: Decoded | Malformed) -> float | None:
    """Return how long ago the sender says that it published the message."""
    if isinstance(decoded, Malformed) or decoded.time is None:
        return None
    return (datetime.now(UTC) - decoded.time).total_seconds()


def _error_class(outcome: Outcome) -> str | None:
    match outcome:
        case Waiting(error_class=name) | Ended(error_class=name):
            return name
        case Unknown(fault) | Unavailable(fault=fault):
            return fault
        case _:
            return None
