"""Own tracing on the OpenTelemetry API: one `process` span per attempt, short ones for settling and publishing.

An attempt is the root of a new trace and *linked* to the context in which its message was created: it may run hours
later, again, or after a replay, and a trace that lasts days helps nobody. The price is that a sampler decides about it
by itself. Nothing is done, in well under a microsecond, while the process has no tracer provider of its own.

What comes from messages stands on spans as it is needed to find them again; error texts and bodies do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, NoOpTracerProvider, ProxyTracerProvider, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from consumers.telemetry import names
from consumers.telemetry.faults import Faults
from consumers.telemetry.names import OPERATION_TYPES, Operation

Value = str | bool | int | float

_SILENT: Final = (ProxyTracerProvider, NoOpTracerProvider)
_ROOT: Final = Context()
_propagator = TraceContextTextMapPropagator()


class Spans:
    """Starts spans at the tracer provider that the process has set globally, now or later.

    :param version: version of this product, said to the tracer.
    """

    def __init__(self, faults: Faults, *, version: str) -> None:
        self._faults = faults
        self._version = version
        self._provider: trace.TracerProvider | None = None
        self._tracer: Tracer | None = None

    def process(
        self,
        *,
        queue: str,
        consumer: str,
        exchange: str,
        routing_key: str,
        message_id: str,
        message_type: str,
        redelivered: bool,
        traceparent: str | None,
        correlation_id: str | None = None,
    ) -> Span:
        """Return the span of an attempt: root of a new trace, current inside its block, with a handler's own below it.

        :param exchange: where the message was first published to.
        :param traceparent: context in which the message was created, as its header said; anything else is ignored.
        """
        try:
            tracer = self._current_tracer()
            if tracer is None:
                return SILENT
            attributes: dict[str, Value] = {
                **_operation(Operation.PROCESS),
                names.DESTINATION_NAME: destination(exchange, routing_key, queue),
                names.DESTINATION_TEMPLATE: queue,
                names.CONSUMER: consumer,
                names.REDELIVERED: redelivered,
            }
            for name, text in (
                (names.ROUTING_KEY, routing_key),
                (names.MESSAGE_ID, message_id),
                (names.MESSAGE_TYPE, message_type),
                (names.CONVERSATION_ID, correlation_id),
            ):
                if text:
                    attributes[name] = text
            links = _creation(traceparent)
            return self._started(tracer, f"process {queue}", SpanKind.CONSUMER, attributes, links, root=True)
        except Exception as error:
            self._faults.caught("span.start", error)
            return SILENT

    def operation(self, operation: Operation, where: str, *, traceparent: str | None = None) -> Span:
        """Return the span of a settlement or of a publish, below the span that is current.

        :param where: queue that is settled, or low-cardinality name of what is published to.
        :param traceparent: context in which the message was created, if the span cannot be below it.
        """
        try:
            tracer = self._current_tracer()
            if tracer is None:
                return SILENT
            attributes: dict[str, Value] = {**_operation(operation), names.DESTINATION_TEMPLATE: where}
            # Only who puts his own context into a message is its PRODUCER; copies keep the one that they came with.
            return self._started(
                tracer, f"{operation.value} {where}", SpanKind.CLIENT, attributes, _creation(traceparent), root=False
            )
        except Exception as error:
            self._faults.caught("span.start", error)
            return SILENT

    def _started(
        self,
        tracer: Tracer,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Value],
        links: Sequence[Link],
        *,
        root: bool,
    ) -> Span:
        span = tracer.start_span(
            _clean(name),
            context=_ROOT if root else None,
            kind=kind,
            attributes={key: _clean(value) if isinstance(value, str) else value for key, value in attributes.items()},
            links=links,
        )
        return LiveSpan(span, self._faults)

    def _current_tracer(self) -> Tracer | None:
        provider = trace.get_tracer_provider()
        if provider is not self._provider:
            self._provider = provider
            self._tracer = (
                None
                if isinstance(provider, _SILENT)
                else provider.get_tracer(names.SCOPE, self._version, schema_url=names.SCHEMA_URL)
            )
        return self._tracer


class Span:
    """A span that nobody wants. Everything it is told is forgotten."""

    __slots__ = ()

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    def attempt(self, *, number: int, generation: int, claim_id: str) -> None:
        """Say which attempt this is, once the inbox has told."""

    def settle(self, outcome: str | None = None, *, error_class: str | None = None) -> None:
        """Say how it ended.

        :param outcome: as `outcome_label` names it; for attempts.
        :param error_class: class of the error that decided it; makes the span an error.
        """


SILENT: Final = Span()


class LiveSpan(Span):
    """A span that is recorded. It is current inside its block and ends with it."""

    __slots__ = ("_faults", "_settled", "_span", "_token")

    def __init__(self, span: trace.Span, faults: Faults) -> None:
        self._span = span
        self._faults = faults
        self._token: Token[Context] | None = None
        self._settled = False

    def __enter__(self) -> Span:
        try:
            self._token = attach(trace.set_span_in_context(self._span))
        except Exception as error:
            self._faults.caught("span.enter", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and not self._settled:
            self.settle(error_class=kind.__name__)
        try:
            if self._token is not None:
                detach(self._token)
        except Exception as fault:
            self._faults.caught("span.exit", fault)
        try:
            self._span.end()
        except Exception as fault:
            self._faults.caught("span.exit", fault)

    def attempt(self, *, number: int, generation: int, claim_id: str) -> None:
        """Say which attempt this is, once the inbox has told."""
        try:
            self._span.set_attributes(
                {names.ATTEMPT: number, names.GENERATION: generation, names.CLAIM_ID: claim_id},
            )
        except Exception as error:
            self._faults.caught("span.set", error)

    def settle(self, outcome: str | None = None, *, error_class: str | None = None) -> None:
        """Say how it ended."""
        self._settled = True
        try:
            if outcome:
                self._span.set_attribute(names.OUTCOME, outcome)
            if error_class:
                self._span.set_attribute(names.ERROR_TYPE, _clean(error_class))
                self._span.set_status(Status(StatusCode.ERROR))
        except Exception as error:
            self._faults.caught("span.set", error)


def destination(exchange: str, routing_key: str, queue: str = "") -> str:
    """Return a destination as the conventions write it: empty parts are left out, and a queue that repeats the key."""
    parts = [part for part in (exchange, routing_key, queue if queue != routing_key else "") if part]
    return ":".join(parts) or names.DEFAULT_EXCHANGE


def _operation(operation: Operation) -> dict[str, Value]:
    return {
        names.MESSAGING_SYSTEM: names.RABBITMQ,
        names.OPERATION_NAME: operation.value,
        names.OPERATION_TYPE: OPERATION_TYPES[operation],
    }


def _creation(traceparent: str | None) -> list[Link]:
    if not traceparent:
        return []
    context = _propagator.extract({"traceparent": traceparent}, context=_ROOT)
    creation = trace.get_current_span(context).get_span_context()
    return [Link(creation)] if creation.is_valid else []


def _clean(text: str) -> str:
    # One lone surrogate would make an exporter drop the whole batch it stands in.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
