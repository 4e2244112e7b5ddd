"""Spans: one root per attempt, linked to its message's creation; none without a tracer; no fault goes further."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from consumers.telemetry import ConsumerTelemetry, Operation, Telemetry
from consumers.telemetry.spans import SILENT, destination
from inbox.envelope import Message

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Finished = Callable[[], list[ReadableSpan]]


def message(**changed: Any) -> Message:
    facts: dict[str, Any] = {
        "key": UUID(int=1),
        "consumer": "invoices",
        "source": "shop",
        "message_id": "m-1",
        "type": "order.placed",
        "body": b"",
        "properties": b"",
        "exchange": "shop",
        "routing_key": "order.eu",
        "traceparent": TRACEPARENT,
    }
    return Message(**{**facts, **changed})


@pytest.fixture
def consumer() -> Iterator[ConsumerTelemetry]:
    telemetry = Telemetry.create("billing", "1.2.3")
    yield telemetry.consumer("invoices", queue="billing.invoices")
    telemetry.close()


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Iterator[Finished]:
    """A tracer provider set for the process; what it finished."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield lambda: list(exporter.get_finished_spans())
    provider.shutdown()


def only(finished: Finished) -> ReadableSpan:
    (span,) = finished()
    return span


def test_without_a_tracer_nothing_is_made(consumer: ConsumerTelemetry) -> None:
    span = consumer.process(message(), redelivered=False)

    assert span is SILENT
    with span:
        span.attempt(number=1, generation=1, claim_id="c")
        span.settle("processed", error_class="ValueError")
        assert not trace.get_current_span().get_span_context().is_valid


def test_an_attempt_is_one_span_with_the_names_of_the_conventions(
    consumer: ConsumerTelemetry, finished: Finished
) -> None:
    with consumer.process(message(), redelivered=True, correlation_id="c-1") as span:
        span.attempt(number=2, generation=1, claim_id="claim")
        span.settle("processed")

    span_made = only(finished)
    assert span_made.name == "process billing.invoices"
    assert span_made.kind is SpanKind.CONSUMER
    assert span_made.status.status_code is StatusCode.UNSET
    assert dict(span_made.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "shop:order.eu:billing.invoices",
        "messaging.destination.template": "billing.invoices",
        "messaging.rabbitmq.destination.routing_key": "order.eu",
        "messaging.message.id": "m-1",
        "messaging.message.conversation_id": "c-1",
        "inbox.message_type": "order.placed",
        "inbox.consumer": "invoices",
        "inbox.redelivered": True,
        "inbox.attempt": 2,
        "inbox.generation": 1,
        "inbox.claim_id": "claim",
        "inbox.outcome": "processed",
    }
    scope = span_made.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.version) == ("inbox-fleet", "1.2.3")
    assert scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


def test_an_attempt_is_a_root_linked_to_the_creation_of_its_message(
    consumer: ConsumerTelemetry, finished: Finished
) -> None:
    ambient = trace.NonRecordingSpan(trace.SpanContext(trace_id=7, span_id=7, is_remote=False))
    with trace.use_span(ambient), consumer.process(message(), redelivered=False):
        pass

    span = only(finished)
    assert span.parent is None
    assert span.context is not None
    (link,) = span.links
    assert f"{link.context.trace_id:032x}-{link.context.span_id:016x}" in TRACEPARENT
    assert span.context.trace_id not in (7, link.context.trace_id)


@pytest.mark.parametrize("traceparent", [None, "", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\ud800"])
def test_a_message_without_a_readable_context_has_no_link(
    consumer: ConsumerTelemetry, finished: Finished, traceparent: str | None
) -> None:
    with consumer.process(message(traceparent=traceparent), redelivered=False):
        pass

    assert list(only(finished).links) == []


def test_what_samplers_decide_by_is_there_when_the_span_begins(
    consumer: ConsumerTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    class Watching(Sampler):
        def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **named: Any) -> Any:
            seen.append(dict(named.get("attributes") or rest[1]))
            result: SamplingResult = ALWAYS_ON.should_sample(parent_context, trace_id, name, *rest, **named)
            return result

        def get_description(self) -> str:
            return "watching"

    provider = TracerProvider(sampler=Watching(), shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with consumer.process(message(), redelivered=False):
        pass

    assert seen[0]["messaging.destination.template"] == "billing.invoices"
    assert seen[0]["messaging.message.id"] == "m-1"


async def test_spans_of_the_handler_are_below_the_attempt(consumer: ConsumerTelemetry, finished: Finished) -> None:
    async def handler() -> None:
        with trace.get_tracer_provider().get_tracer("theirs").start_as_current_span("their work"):
            await asyncio.sleep(0)

    with consumer.process(message(), redelivered=False):
        await asyncio.create_task(handler())

    theirs, attempt = finished()
    assert theirs.name == "their work"
    assert theirs.parent is not None
    assert attempt.context is not None
    assert theirs.parent.span_id == attempt.context.span_id


def test_an_attempt_that_failed_names_the_class_of_its_error_and_not_its_text(
    consumer: ConsumerTelemetry, finished: Finished
) -> None:
    with consumer.process(message(), redelivered=False) as span:
        span.settle("waiting", error_class="ValueError")

    span_made = only(finished)
    assert (span_made.attributes or {})["error.type"] == "ValueError"
    assert (span_made.attributes or {})["inbox.outcome"] == "waiting"
    assert span_made.status.status_code is StatusCode.ERROR
    assert span_made.status.description is None
    assert list(span_made.events) == []


@pytest.mark.parametrize("error", [ValueError("secret text"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_leaves_the_block_passes_through_and_is_named(
    consumer: ConsumerTelemetry, finished: Finished, error: BaseException
) -> None:
    with pytest.raises(type(error)), consumer.process(message(), redelivered=False):
        raise error

    span = only(finished)
    assert (span.attributes or {})["error.type"] == type(error).__name__
    assert "secret text" not in span.to_json()


def test_settling_and_publishing_are_spans_below_the_current_one(
    consumer: ConsumerTelemetry, finished: Finished
) -> None:
    with consumer.process(message(), redelivered=False):
        with consumer.settling(Operation.ACK):
            pass
        with consumer.publishing("billing.invoices.park", traceparent=TRACEPARENT):
            pass

    ack, publish, attempt = finished()
    assert attempt.context is not None
    for span, name, kind in (
        (ack, "ack billing.invoices", "settle"),
        (publish, "publish billing.invoices.park", "send"),
    ):
        assert span.name == name
        assert span.kind is SpanKind.CLIENT
        assert (span.attributes or {})["messaging.operation.type"] == kind
        assert span.parent is not None
        assert span.parent.span_id == attempt.context.span_id
    assert len(publish.links) == 1


def test_text_that_utf8_cannot_hold_does_not_reach_exporters(consumer: ConsumerTelemetry, finished: Finished) -> None:
    odd = message(routing_key="k\ud800", message_id="m\udfff", type="t\ud800")
    with consumer.process(odd, redelivered=False) as span:
        span.settle("waiting", error_class="E\ud800")

    only(finished).to_json().encode("utf-8")
    for value in (only(finished).attributes or {}).values():
        str(value).encode("utf-8")


def test_a_tracer_that_is_configured_later_is_used(consumer: ConsumerTelemetry, request: pytest.FixtureRequest) -> None:
    assert consumer.process(message(), redelivered=False) is SILENT

    finished: Finished = request.getfixturevalue("finished")
    with consumer.process(message(), redelivered=False):
        pass

    assert only(finished).name == "process billing.invoices"


class Raising(SpanProcessor):
    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._at == "start":
            raise RuntimeError("hook")

    def on_end(self, span: Any) -> None:
        if self._at == "end":
            raise RuntimeError("hook")


@pytest.mark.parametrize("at", ["start", "end", "provider"])
def test_a_hook_that_raises_changes_nothing_but_a_count(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    telemetry = Telemetry.create("billing", "1.2.3")
    consumer = telemetry.consumer("invoices", queue="billing.invoices")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Raising(at))

    def get_provider() -> TracerProvider:
        if at == "provider":
            raise RuntimeError("hook")
        return provider

    monkeypatch.setattr(trace, "get_tracer_provider", get_provider)
    done = []
    with capture_logs() as lines, consumer.process(message(), redelivered=False) as span:
        span.settle("processed")
        with consumer.settling(Operation.ACK):
            done.append("work")

    assert done == ["work"]
    assert [line["event"] for line in lines] == ["telemetry.failed"]
    assert f'inbox_telemetry_faults_total{{place="span.{"exit" if at == "end" else "start"}"}} 2.0' in (
        telemetry.exposition().decode()
    )
    telemetry.close()


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("shop", "order.placed", "billing"), "shop:order.placed:billing"),
        (("shop", "order.placed"), "shop:order.placed"),
        (("", "billing", "billing"), "billing"),
        (("shop", "", "billing"), "shop:billing"),
        (("", "", ""), "amq.default"),
    ],
)
def test_destinations_are_written_as_the_conventions_say(parts: tuple[str, ...], expected: str) -> None:
    assert destination(*parts) == expected


def test_a_span_left_in_another_context_ends_all_the_same(consumer: ConsumerTelemetry, finished: Finished) -> None:
    span = consumer.process(message(), redelivered=False)
    contextvars.copy_context().run(span.__enter__)

    span.__exit__(None, None, None)

    assert only(finished).end_time is not None
