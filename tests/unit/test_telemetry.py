"""Metrics: what is measured is what is exposed, no sender can add labels, and no fault of telemetry goes further."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from consumers.telemetry import ConsumerTelemetry, Operation, Telemetry, names, outcome_label
from consumers.telemetry.cells import MAX_CELLS, Distribution, Distributions
from consumers.telemetry.consumer import MAX_ERROR_CLASSES
from consumers.telemetry.faults import QUIET_S, Faults
from consumers.telemetry.loop import loop_lag
from inbox.outcomes import (
    Absorbed,
    Contended,
    Duplicate,
    Early,
    Ended,
    Full,
    Outcome,
    Processed,
    Stopped,
    Unavailable,
    Undecided,
    Unkept,
    Unknown,
    Waiting,
)
from inbox.states import State
from pools import PoolStatistics
from tests.support.eventually import eventually

OUTCOMES = {
    "processed": Processed(1),
    "duplicate": Duplicate(),
    "absorbed": Absorbed(State.EXHAUSTED),
    "contended": Contended(),
    "undecided": Undecided(),
    "early": Early(1.0),
    "full": Full(),
    "unkept": Unkept("no queue is bound for it"),
    "waiting": Waiting(1, 5.0, True, "ValueError"),
    "aborted": Waiting(1, 5.0, False, "ValueError"),
    "exhausted": Ended(State.EXHAUSTED, 5, "reason"),
    "rejected": Ended(State.REJECTED, 1, "reason"),
    "unknown": Unknown("SessionLost"),
    "unavailable": Unavailable("SessionLost", started=True),
    "stopped": Stopped(),
}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry.create("billing", "1.2.3", schema=4)
    yield telemetry
    telemetry.close()


@pytest.fixture
def invoices(telemetry: Telemetry) -> ConsumerTelemetry:
    return telemetry.consumer("invoices", queue="billing.invoices", types={"order.placed"})


def families(telemetry: Telemetry) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(telemetry.exposition().decode())}


def value(telemetry: Telemetry, sample_name: str, **labels: str) -> float | None:
    """The value of the one sample of this name that has these labels among its own."""
    found = [
        sample.value
        for family in families(telemetry).values()
        for sample in family.samples
        if sample.name == sample_name and labels.items() <= sample.labels.items()
    ]
    assert len(found) < 2, f"{len(found)} samples of {sample_name} have {labels}"
    return found[0] if found else None


def labels(telemetry: Telemetry, family: str, label: str) -> set[str]:
    return {sample.labels[label] for sample in families(telemetry)[family].samples if label in sample.labels}


def pool(**changed: Any) -> PoolStatistics:
    figures: dict[str, Any] = {
        "name": "invoices",
        "application_name": "billing-invoices",
        "size": 9,
        "limit": 9,
        "open": 5,
        "in_use": 3,
        "idle": 2,
        "waiting": 4,
        "acquires": 10,
        "timeouts": 1,
        "waited_s_total": 2.5,
        "waited_s_max": 1.5,
        "refusals": 0,
        "terminated": 0,
    }
    return PoolStatistics(**{**figures, **changed})


def test_tries_of_exhaustion_records_are_counted_by_their_result(
    telemetry: Telemetry, invoices: ConsumerTelemetry
) -> None:
    for result in ("acknowledged", "failed", "acknowledged"):
        invoices.tried(result)
    assert value(telemetry, "inbox_exhaustions_total", consumer="invoices", result="acknowledged") == 2
    assert value(telemetry, "inbox_exhaustions_total", consumer="invoices", result="failed") == 1


def test_unacknowledged_records_are_those_of_the_last_count(telemetry: Telemetry) -> None:
    telemetry.unacknowledged("invoices", waiting=3, stuck=1)
    telemetry.unacknowledged("invoices", waiting=2, stuck=0)
    assert value(telemetry, "inbox_exhaustions_unacknowledged", consumer="invoices", state="waiting") == 2
    assert value(telemetry, "inbox_exhaustions_unacknowledged", consumer="invoices", state="stuck") == 0


def test_attempts_are_counted_by_outcome(telemetry: Telemetry, invoices: ConsumerTelemetry) -> None:
    for outcome in ("processed", "processed", "waiting"):
        invoices.settled(outcome, message_type="order.placed", duration_s=0.01)

    counted = {"consumer": "invoices", "type": "order.placed"}
    assert value(telemetry, "inbox_attempts_total", outcome="processed", **counted) == 2
    assert value(telemetry, "inbox_attempts_total", outcome="waiting", **counted) == 1


@pytest.mark.parametrize(("label", "outcome"), OUTCOMES.items())
def test_every_outcome_has_its_word(label: str, outcome: Outcome) -> None:
    assert outcome_label(outcome) == label


def test_no_outcome_is_without_a_word() -> None:
    assert {type(outcome) for outcome in OUTCOMES.values()} == set(get_args(Outcome))


def test_types_without_a_handler_share_one_label(telemetry: Telemetry, invoices: ConsumerTelemetry) -> None:
    for number in range(500):
        invoices.settled("rejected", message_type=f"forged.{number}.\ud800", duration_s=0.01)

    assert labels(telemetry, "inbox_attempts", "type") == {names.OTHER}


def test_error_classes_beyond_the_bound_share_one_label(telemetry: Telemetry, invoices: ConsumerTelemetry) -> None:
    for number in range(500):
        invoices.settled("waiting", message_type="order.placed", duration_s=0.01, error_class=f"Error{number}")
        with pytest.raises(ValueError), invoices.publishing("billing.invoices.park"):
            raise type(f"Raised{number}", (ValueError,), {})

    found = labels(telemetry, "messaging_process_duration_seconds", "error_type")
    found |= labels(telemetry, "messaging_client_operation_duration_seconds", "error_type")
    assert names.OTHER in found
    assert len(found) <= MAX_ERROR_CLASSES + 1
    attempts = value(telemetry, "inbox_attempts_total", outcome="waiting")
    durations = [
        sample.value
        for sample in families(telemetry)["messaging_process_duration_seconds"].samples
        if sample.name.endswith("_count")
    ]
    assert sum(durations) == attempts == 500


def test_one_metric_has_a_bounded_number_of_label_sets() -> None:
    distributions = Distributions(names.LOOP_LAG)
    for number in range(MAX_CELLS + 100):
        distributions.cell({"consumer": str(number)}).record(0.1)

    points = distributions.points(0)
    assert len(points) == MAX_CELLS + 1
    assert points[-1].attributes == {"consumer": names.OTHER}
    assert points[-1].count == 100


def test_a_label_that_utf8_cannot_hold_does_not_hide_the_others(telemetry: Telemetry) -> None:
    telemetry.consumer("odd\ud800", queue="q").settled("processed", message_type="", duration_s=0.1)

    assert value(telemetry, "inbox_attempts_total", consumer="odd?") == 1


def test_deliveries_parking_and_late_settlements_are_counted(telemetry: Telemetry, invoices: ConsumerTelemetry) -> None:
    invoices.delivered()
    invoices.delivered()
    invoices.parked("5s")
    invoices.parked("contention")
    invoices.settlement_dropped()

    assert value(telemetry, "messaging_client_consumed_messages_total", consumer="invoices") == 2
    assert value(telemetry, "inbox_parked_total", consumer="invoices", step="5s") == 1
    assert value(telemetry, "inbox_parked_total", consumer="invoices", step="contention") == 1
    assert value(telemetry, "inbox_settlements_dropped_total", consumer="invoices") == 1


def test_operations_at_the_broker_are_timed_and_publishes_counted(
    telemetry: Telemetry, invoices: ConsumerTelemetry
) -> None:
    with invoices.settling(Operation.ACK):
        pass
    with invoices.publishing("billing.invoices.park"):
        pass
    with pytest.raises(ConnectionError), invoices.publishing("billing.invoices.park"):
        raise ConnectionError

    timed = "messaging_client_operation_duration_seconds_count"
    sent = "messaging_client_sent_messages_total"
    assert value(telemetry, timed, messaging_operation_name="ack", messaging_operation_type="settle") == 1
    assert value(telemetry, timed, messaging_operation_name="publish", error_type="") == 1
    assert value(telemetry, timed, messaging_operation_name="publish", error_type="ConnectionError") == 1
    assert value(telemetry, sent, error_type="", messaging_destination_template="billing.invoices.park") == 1
    assert value(telemetry, sent, error_type="ConnectionError") == 1


async def test_a_cancelled_operation_passes_the_cancellation_on(
    telemetry: Telemetry, invoices: ConsumerTelemetry
) -> None:
    entered = asyncio.Event()

    async def publish() -> None:
        with invoices.publishing("billing.invoices.park"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(publish())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert value(telemetry, "messaging_client_sent_messages_total", error_type="CancelledError") == 1


def test_critical_time_is_measured_where_an_effect_was_committed(
    telemetry: Telemetry, invoices: ConsumerTelemetry
) -> None:
    invoices.settled("processed", message_type="order.placed", duration_s=0.01, critical_time_s=7200.0)
    invoices.settled("duplicate", message_type="order.placed", duration_s=0.01)
    invoices.settled("processed", message_type="order.placed", duration_s=0.01, critical_time_s=-3.0)

    assert value(telemetry, "inbox_critical_time_seconds_count", consumer="invoices") == 2
    assert value(telemetry, "inbox_critical_time_seconds_sum", consumer="invoices") == 7200.0
    assert value(telemetry, "inbox_critical_time_seconds_bucket", le="3600.0") == 1
    assert value(telemetry, "inbox_critical_time_seconds_bucket", le="21600.0") == 2


def test_present_state_is_read_when_somebody_asks(telemetry: Telemetry, invoices: ConsumerTelemetry) -> None:
    state = {"busy": 2, "open": False}
    invoices.watch(lanes=8, busy=lambda: int(state["busy"]), breaker_open=lambda: bool(state["open"]))
    assert value(telemetry, "inbox_lanes_busy", consumer="invoices") == 2
    assert value(telemetry, "inbox_breaker_open", consumer="invoices") == 0

    state.update(busy=5, open=True)

    assert value(telemetry, "inbox_lanes_busy", consumer="invoices") == 5
    assert value(telemetry, "inbox_breaker_open", consumer="invoices") == 1
    assert value(telemetry, "inbox_lanes", consumer="invoices") == 8


def test_pools_are_read_when_somebody_asks(telemetry: Telemetry) -> None:
    telemetry.watch_pools(lambda: [pool(), pool(name="service", in_use=0, waiting=0)])

    invoices = {"db_client_connection_pool_name": "invoices"}
    count, waited = "db_client_connection_count", "db_client_connection_wait_time_seconds"
    assert value(telemetry, count, db_client_connection_state="used", **invoices) == 3
    assert value(telemetry, count, db_client_connection_state="idle", **invoices) == 2
    assert value(telemetry, "db_client_connection_max", **invoices) == 9
    assert value(telemetry, "db_client_connection_pending_requests", **invoices) == 4
    assert value(telemetry, "db_client_connection_timeouts_total", **invoices) == 1
    assert value(telemetry, f"{waited}_count", **invoices) == 11
    assert value(telemetry, f"{waited}_sum", **invoices) == 2.5
    assert value(telemetry, count, db_client_connection_pool_name="service", db_client_connection_state="used") == 0


def test_lost_log_lines_are_counted(telemetry: Telemetry) -> None:
    telemetry.watch_log(lambda: 7)

    assert value(telemetry, "inbox_log_lines_lost_total") == 7


def test_it_says_what_runs_here(telemetry: Telemetry) -> None:
    assert value(telemetry, "inbox_build_info", service="billing", version="1.2.3", schema="4") == 1
    assert value(telemetry, "target_info", service_name="billing", service_version="1.2.3") == 1


def test_every_metric_has_help_a_known_type_and_a_fitting_name(
    telemetry: Telemetry, invoices: ConsumerTelemetry
) -> None:
    with invoices.publishing("park"):
        invoices.parked("5s")
    invoices.settled("processed", message_type="x", duration_s=0.1, critical_time_s=1.0)
    invoices.watch(lanes=1, busy=lambda: 0, breaker_open=lambda: False)
    telemetry.watch_pools(lambda: [pool()])

    found = families(telemetry)
    assert len(found) >= 18
    for name, family in found.items():
        assert family.documentation, name
        assert family.type in ("counter", "gauge", "histogram"), name
        assert (family.type == "histogram") == name.endswith("_seconds"), name


def test_two_in_one_process_do_not_meet(telemetry: Telemetry, invoices: ConsumerTelemetry) -> None:
    other = Telemetry.create("billing", "1.2.3")
    invoices.delivered()

    assert value(other, "messaging_client_consumed_messages_total") is None
    other.close()


def test_one_reading_that_fails_hides_nothing_else(telemetry: Telemetry, invoices: ConsumerTelemetry) -> None:
    def failing() -> Any:
        raise RuntimeError("cannot be read")

    telemetry.consumer("broken", queue="q").watch(lanes=1, busy=failing, breaker_open=failing)
    invoices.watch(lanes=8, busy=lambda: 3, breaker_open=lambda: False)
    telemetry.watch_pools(failing)
    with capture_logs() as lines:
        assert value(telemetry, "inbox_lanes_busy", consumer="invoices") == 3

    assert value(telemetry, "inbox_lanes_busy", consumer="broken") is None
    assert value(telemetry, "inbox_lanes", consumer="broken") == 1
    assert (value(telemetry, "inbox_telemetry_faults_total", place="metric.read") or 0) >= 3
    assert [line["event"] for line in lines] == ["telemetry.failed"]


@pytest.mark.parametrize(
    "measure",
    [
        lambda consumer: consumer.settled("processed", message_type="t", duration_s="soon"),
        lambda consumer: consumer.settled(["unhashable"], message_type="t", duration_s=0.1),
        lambda consumer: consumer.settled("processed", message_type=["unhashable"], duration_s=0.1),
        lambda consumer: consumer.parked(7),
        lambda consumer: consumer.operated(Operation.ACK, None, duration_s=0.1, error_class=None),
    ],
    ids=["text for a number", "outcome", "type", "step", "place"],
)
def test_a_measurement_that_cannot_be_taken_changes_nothing(
    telemetry: Telemetry, invoices: ConsumerTelemetry, measure: Callable[[Any], None]
) -> None:
    with capture_logs() as lines:
        measure(invoices)

    assert [line["event"] for line in lines] == ["telemetry.failed"]
    invoices.settled("processed", message_type="order.placed", duration_s=0.1)
    assert value(telemetry, "inbox_attempts_total", outcome="processed", type="order.placed") == 1


def test_faults_are_counted_always_and_logged_once_a_minute() -> None:
    now = 0.0
    faults = Faults(lambda: now)
    with capture_logs() as lines:
        for _ in range(5):
            faults.caught("settled", ValueError("odd"))
        now += QUIET_S
        faults.caught("parked", ValueError("odd"))

    assert faults.counts == {"settled": 5, "parked": 1}
    assert [(line["place"], line["more_since_last"]) for line in lines] == [("settled", 0), ("parked", 4)]


def test_a_distribution_is_exposed_exactly_as_the_sdk_exposes_its_histogram(telemetry: Telemetry) -> None:
    values = [0.0, 0.001, 0.005, 0.0050001, 0.3, 0.75, 1.0, 9.99, 10.0, 10.01, 500.0]
    metric = names.OPERATION_DURATION
    consumer = telemetry.consumer("invoices", queue="q")
    for number in values:
        consumer.operated(Operation.ACK, "q", duration_s=number, error_class=None)

    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(scope_info_enabled=False, registry=registry)])
    histogram = provider.get_meter("sdk").create_histogram(
        metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.bounds
    )
    attributes = consumer._messaging(Operation.ACK, "q")
    for number in values:
        histogram.record(number, attributes)

    def exposed(text: bytes) -> list[str]:
        return [line for line in text.decode().splitlines() if "messaging_client_operation_duration" in line]

    assert exposed(telemetry.exposition()) == exposed(generate_latest(registry))
    provider.shutdown()


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_does_not_spoil_a_sum(odd: float) -> None:
    distribution = Distribution({}, (1.0,))
    distribution.record(0.5)
    distribution.record(odd)

    point = distribution.point(0)
    assert (point.count, point.sum, point.min, point.max) == (1, 0.5, 0.5, 0.5)


async def test_a_blocked_loop_is_measured_and_told() -> None:
    measured: list[float] = []
    with capture_logs() as lines:
        task = asyncio.create_task(loop_lag(measured.append, period_s=0.01))
        await eventually(lambda: measured)
        time.sleep(1.2)  # noqa: ASYNC251  # the fault: somebody blocks the loop
        await eventually(lambda: max(measured) >= 1.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert [line["event"] for line in lines] == ["loop.blocked"]
    assert lines[0]["lag_s"] >= 1.0
