"""The task that hands exhaustion records to a consumer's `on_exhausted` handler, beside its lanes.

It goes through the due records in pages, from the oldest on, and from the start again after each pass: a record whose
transaction committed late, or whose process died, is met by the next one. It tries one record at a time, and one that
is paced, stuck or in other hands is passed by, so none holds up those after it. While the consumer's breaker is open it
tries nothing.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import structlog

from consumers.breaker import Breaker
from consumers.calling import call
from consumers.handlers import BoundHandler
from consumers.logs import bind_try, exhaustion_tried
from consumers.plan import ConsumerPlan
from consumers.telemetry import ConsumerTelemetry, result_label
from inbox import Backoff, Deliverer, ExhaustionRecord, Tx
from inbox.claiming import DRIVER_ERRORS, describe
from inbox.tries import Aborted, Due, Failed, Skipped, Stuck, TryOutcome, Unavailable, Unknown
from pools import PoolError

log = structlog.get_logger(__name__)

_PAGE = 50
_EVERY_S = 1.0
_LONGEST_WAIT_S = 30.0


class ExhaustionDelivery:
    """The delivery of one consumer's exhaustion records in one process."""

    def __init__(
        self,
        plan: ConsumerPlan,
        handler: BoundHandler,
        *,
        deliverer: Deliverer,
        breaker: Breaker,
        telemetry: ConsumerTelemetry,
    ) -> None:
        self._plan = plan
        self._handler = handler
        self._deliverer = deliverer
        self._breaker = breaker
        self._telemetry = telemetry

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop`; a try that runs then is finished, or cut by the drain."""
        pauses = Backoff(first_s=_EVERY_S, longest_s=_LONGEST_WAIT_S)
        while not stop.is_set():
            try:
                served = await self._pass(stop)
            except Exception:
                # A fault of the product itself: it must neither end the consumer nor spin.
                log.exception("exhaustion_delivery.fault", consumer=self._plan.name)
                served = False
            if served:
                pauses.reset()
            await _wait(stop, _EVERY_S if served else pauses.next_s())

    async def _pass(self, stop: asyncio.Event) -> bool:
        """Try each due record once. Return whether the database served us."""
        after: Due | None = None
        while self._may_try(stop):
            try:
                page = await self._deliverer.due(self._plan.settings.key_name, after=after, limit=_PAGE)
            except (*DRIVER_ERRORS, PoolError) as error:
                log.warning("exhaustion_delivery.unavailable", consumer=self._plan.name, fault=describe(error))
                return False
            for due in page:
                if not self._may_try(stop):
                    return True
                if isinstance(await self._try(due, stop), Unavailable):
                    return False
            if len(page) < _PAGE:
                break
            after = page[-1]
        return True

    def _may_try(self, stop: asyncio.Event) -> bool:
        return not stop.is_set() and not self._breaker.is_open

    async def _try(self, due: Due, stop: asyncio.Event) -> TryOutcome:
        record: ExhaustionRecord | None = None

        async def handle(given: ExhaustionRecord, tx: Tx) -> None:
            nonlocal record
            record = given
            bind_try(consumer=self._plan.name, record=given)
            await call(self._handler, given, tx)

        began = perf_counter()
        outcome = await self._deliverer.attempt(
            due, self._plan.exhaustion_policy, handle, may_begin=lambda: self._may_try(stop)
        )
        if isinstance(outcome, Skipped):
            return outcome
        result = result_label(outcome)
        self._telemetry.tried(result)
        exhaustion_tried(
            log,
            consumer=self._plan.name,
            exhaustion_id=due.id,
            key=due.key,
            generation=due.generation,
            record=record,
            result=result,
            duration_s=perf_counter() - began,
            error_class=_error_class(outcome),
            delay_s=outcome.delay_s if isinstance(outcome, (Failed, Aborted)) else None,
        )
        return outcome


def _error_class(outcome: TryOutcome) -> str | None:
    match outcome:
        case Failed(error_class=name) | Aborted(error_class=name) | Stuck(error_class=name):
            return name
        case Unknown(fault) | Unavailable(fault):
            return fault
        case _:
            return None


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
