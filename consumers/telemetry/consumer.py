"""What one consumer tells: everything that a lane, its settlements and its parking report, at the cost of an addition.

Attributes are resolved to cells the first time that a combination appears. No call raises an `Exception`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from types import TracebackType

from consumers.telemetry import names
from consumers.telemetry.cells import Count, Distribution
from consumers.telemetry.faults import Faults
from consumers.telemetry.metrics import Metrics
from consumers.telemetry.names import OPERATION_TYPES, Operation
from consumers.telemetry.spans import Span, Spans
from inbox.envelope import Message

MAX_ERROR_CLASSES = 50
"""Error classes of one consumer that are told apart; what comes after them is `_OTHER`."""


class ConsumerTelemetry:
    """The measurements of one consumer.

    :param name: the consumer's name.
    :param queue: its work queue.
    :param types: message types that it has handlers for: the only ones that become labels.
    """

    def __init__(
        self, metrics: Metrics, spans: Spans, faults: Faults, *, name: str, queue: str, types: frozenset[str]
    ) -> None:
        self._metrics = metrics
        self._spans = spans
        self._faults = faults
        self._name = name
        self._queue = queue
        self._types = types
        self._error_classes: set[str] = set()
        self._attempts: dict[tuple[str, str], Count] = {}
        self._durations: dict[str | None, Distribution] = {}
        self._operations: dict[tuple[Operation, str, str | None], Distribution] = {}
        self._sent: dict[tuple[str, str | None], Count] = {}
        self._parked: dict[str, Count] = {}
        self._tried: dict[str, Count] = {}
        own = {names.L_CONSUMER: name}
        self._consumed = metrics.consumed.cell(self._messaging(Operation.CONSUME, queue))
        self._dropped = metrics.settlements_dropped.cell(own)
        self._critical = metrics.critical_time.cell(own)

    def watch(self, *, lanes: int, busy: Callable[[], int], breaker_open: Callable[[], bool]) -> None:
        """Tell how to read the consumer's present state.

        :param lanes: lanes that it has.
        :param busy: how many of them work on a delivery now.
        :param breaker_open: whether it holds back because of a fault.
        """
        self._metrics.watch_consumer(names.LANES, self._name, lambda: lanes)
        self._metrics.watch_consumer(names.LANES_BUSY, self._name, busy)
        self._metrics.watch_consumer(names.BREAKER_OPEN, self._name, breaker_open)

    def delivered(self) -> None:
        """A delivery arrived; called once for each."""
        self._consumed.add()

    def settlement_dropped(self) -> None:
        """A settlement came too late: its channel was gone."""
        self._dropped.add()

    def parked(self, step: str) -> None:
        """A copy is in a parking queue, confirmed.

        :param step: the pacing step ("5s"), or the name of the contention step.
        """
        try:
            cell = self._parked.get(step)
            if cell is None:
                cell = self._metrics.parked.cell({names.L_CONSUMER: self._name, names.L_STEP: step})
                self._parked[step] = cell
            cell.add()
        except Exception as error:
            self._faults.caught("parked", error)

    def tried(self, result: str) -> None:
        """A try to hand over an exhaustion record is over.

        :param result: as `result_label` names it.
        """
        try:
            cell = self._tried.get(result)
            if cell is None:
                cell = self._metrics.exhaustions.cell({names.L_CONSUMER: self._name, names.L_RESULT: result})
                self._tried[result] = cell
            cell.add()
        except Exception as error:
            self._faults.caught("tried", error)

    def settled(
        self,
        outcome: str,
        *,
        message_type: str,
        duration_s: float,
        error_class: str | None = None,
        critical_time_s: float | None = None,
    ) -> None:
        """An attempt is over.

        :param outcome: as `outcome_label` names it.
        :param message_type: the message's type, whatever the sender made it.
        :param duration_s: from the claim to the end of the transaction, seconds.
        :param error_class: class of the error that decided it, if one did.
        :param critical_time_s: from publication to commit, seconds; only where an effect was committed.
        """
        try:
            kind = message_type if message_type in self._types else names.OTHER
            count = self._attempts.get((outcome, kind))
            if count is None:
                count = self._metrics.attempts.cell(
                    {names.L_CONSUMER: self._name, names.L_OUTCOME: outcome, names.L_TYPE: kind}
                )
                self._attempts[outcome, kind] = count
            count.add()
            duration = self._durations.get(error_class)
            if duration is None:
                error_class = self._bounded(error_class)
                duration = self._metrics.process_duration.cell(
                    self._messaging(Operation.PROCESS, self._queue, error_class)
                )
                self._durations[error_class] = duration
            duration.record(duration_s)
            if critical_time_s is not None:
                self._critical.record(critical_time_s)
        except Exception as error:
            self._faults.caught("settled", error)

    def process(self, message: Message, *, redelivered: bool, correlation_id: str | None = None) -> Span:
        """Return the span of an attempt, to be entered around it."""
        return self._spans.process(
            queue=self._queue,
            consumer=self._name,
            exchange=message.exchange,
            routing_key=message.routing_key,
            message_id=message.message_id,
            message_type=message.type,
            redelivered=redelivered,
            traceparent=message.traceparent,
            correlation_id=correlation_id,
        )

    def settling(self, operation: Operation) -> BrokerOperation:
        """Return what measures one settlement, to be entered around it.

        :param operation: `ACK` or `REQUEUE`.
        """
        return BrokerOperation(self, self._spans.operation(operation, self._queue), operation, self._queue)

    def publishing(self, where: str, *, traceparent: str | None = None) -> BrokerOperation:
        """Return what measures one publish, to be entered around it: from its start to the broker's confirm.

        :param where: low-cardinality name of the destination: a parking queue, or an exchange.
        :param traceparent: context in which the message was created.
        """
        span = self._spans.operation(Operation.PUBLISH, where, traceparent=traceparent)
        return BrokerOperation(self, span, Operation.PUBLISH, where)

    def operated(self, operation: Operation, where: str, *, duration_s: float, error_class: str | None) -> None:
        """An operation at the broker is over."""
        try:
            duration = self._operations.get((operation, where, error_class))
            if duration is None:
                error_class = self._bounded(error_class)
                duration = self._metrics.operation_duration.cell(self._messaging(operation, where, error_class))
                self._operations[operation, where, error_class] = duration
            duration.record(duration_s)
            if operation is Operation.PUBLISH:
                sent = self._sent.get((where, error_class))
                if sent is None:
                    sent = self._metrics.sent.cell(self._messaging(operation, where, error_class))
                    self._sent[where, error_class] = sent
                sent.add()
        except Exception as error:
            self._faults.caught("operated", error)

    def _bounded(self, error_class: str | None) -> str | None:
        if error_class is None or error_class in self._error_classes:
            return error_class
        if len(self._error_classes) >= MAX_ERROR_CLASSES:
            return names.OTHER
        self._error_classes.add(error_class)
        return error_class

    def _messaging(self, operation: Operation, where: str, error_class: str | None = None) -> Mapping[str, str]:
        attributes = {
            names.MESSAGING_SYSTEM: names.RABBITMQ,
            names.OPERATION_NAME: operation.value,
            names.OPERATION_TYPE: OPERATION_TYPES[operation],
            names.DESTINATION_TEMPLATE: where,
            names.L_CONSUMER: self._name,
        }
        if error_class:
            attributes[names.ERROR_TYPE] = error_class
        return attributes


class BrokerOperation:
    """Measures one operation at the broker: its span, its duration, and the class of the error it raised, if any."""

    __slots__ = ("_began", "_consumer", "_operation", "_span", "_where")

    def __init__(self, consumer: ConsumerTelemetry, span: Span, operation: Operation, where: str) -> None:
        self._consumer = consumer
        self._span = span
        self._operation = operation
        self._where = where
        self._began = 0.0

    def __enter__(self) -> BrokerOperation:
        self._span.__enter__()
        self._began = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        duration_s = perf_counter() - self._began
        self._consumer.operated(
            self._operation, self._where, duration_s=duration_s, error_class=kind.__name__ if kind else None
        )
        self._span.__exit__(kind, error, traceback)
