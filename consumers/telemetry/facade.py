"""Telemetry of a process: created once where the process is composed, and handed to whoever measures.

It has a meter provider and a Prometheus registry of its own, so two in one process do not meet and a user's own metrics
stay his. For spans it uses the tracer provider that the process has set, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import Metric as MetricPoints
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, generate_latest

from consumers.telemetry import names
from consumers.telemetry.cells import CellReader
from consumers.telemetry.consumer import ConsumerTelemetry
from consumers.telemetry.faults import Faults
from consumers.telemetry.loop import loop_lag
from consumers.telemetry.metrics import Metrics
from consumers.telemetry.spans import Spans
from inbox import Bound
from pools import PoolStatistics


class Telemetry:
    """The telemetry of one process."""

    def __init__(self, *, service_name: str, version: str, schema: int | None) -> None:
        self._faults = Faults()
        self._registry = CollectorRegistry()
        scope = InstrumentationScope(names.SCOPE, version, names.SCHEMA_URL)
        reader = CellReader(self._registry, scope, self._histograms)
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource.create({names.SERVICE_NAME: service_name, names.SERVICE_VERSION: version}),
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter(names.SCOPE, version, schema_url=names.SCHEMA_URL)
        self._metrics = Metrics(meter, self._faults)
        labels = {names.L_SERVICE: service_name, names.L_VERSION: version}
        self._metrics.build(labels if schema is None else {**labels, names.L_SCHEMA: str(schema)})
        self._lag = self._metrics.loop_lag.cell({})
        self._spans = Spans(self._faults, version=version)

    @classmethod
    def create(cls, service_name: str, version: str, *, schema: int | None = None) -> Telemetry:
        """Return the telemetry of a process, to be called once where it is composed.

        :param service_name: name of the service.
        :param version: version of what runs.
        :param schema: version of the inbox schema that it works with.
        """
        return cls(service_name=service_name, version=version, schema=schema)

    def consumer(self, name: str, *, queue: str, types: Iterable[str] = ()) -> ConsumerTelemetry:
        """Return what one consumer reports to; called once for each.

        :param queue: its work queue.
        :param types: message types that it has handlers for: the only ones that become labels.
        """
        return ConsumerTelemetry(
            self._metrics, self._spans, self._faults, name=name, queue=queue, types=frozenset(types)
        )

    def watch_pools(self, figures: Callable[[], Iterable[PoolStatistics]]) -> None:
        """Tell how to read the pools; asked at each exposition."""
        self._metrics.watch_pools(figures)

    def unacknowledged(self, consumer: str, *, waiting: int, stuck: int) -> None:
        """Exhaustion records of a consumer were counted, those that nobody has acknowledged.

        :param waiting: that are delivered, or wait for it.
        :param stuck: that wait for an operator.
        """
        self._metrics.unacknowledged[consumer, "waiting"] = waiting
        self._metrics.unacknowledged[consumer, "stuck"] = stuck

    def watch_open(self, consumer: str, bound: Bound) -> None:
        """Tell how many unfinished messages of a consumer are on record, and whether it begins others; asked at each
        exposition."""
        self._metrics.watch_consumer(names.OPEN_MESSAGES, consumer, lambda: bound.open)
        self._metrics.watch_consumer(names.FULL, consumer, lambda: bound.is_full)

    def swept(self, consumer: str, outcome: str) -> None:
        """The sweep has moved a message on.

        :param outcome: a fixed word for what became of it.
        """
        self._metrics.swept.cell({names.L_CONSUMER: consumer, names.L_OUTCOME: outcome}).add(1)

    def republished(self, consumer: str, what: str, outcome: str) -> None:
        """What a row owes was tried to be published.

        :param what: a fixed word for what is owed.
        :param outcome: a fixed word for how it went.
        """
        labels = {names.L_CONSUMER: consumer, names.L_WHAT: what, names.L_OUTCOME: outcome}
        self._metrics.republished.cell(labels).add(1)

    def removed(self, what: str, number: int) -> None:
        """So many rows were removed after their time.

        :param what: a fixed word for what they were.
        """
        self._metrics.removed.cell({names.L_WHAT: what}).add(number)

    def watch_log(self, lines_lost: Callable[[], int]) -> None:
        """Tell how to read how many log lines could not be written; asked at each exposition."""
        self._metrics.watch_log_lines_lost(lines_lost)

    async def measure_loop(self) -> None:
        """Measure the event loop's lag until cancelled; runs in a task group of the process."""
        await loop_lag(self._lag.record)

    def caught(self, place: str, error: Exception) -> None:
        """Count an error of telemetry that somebody else met.

        :param place: a fixed word for where it was.
        """
        self._faults.caught(place, error)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4.

        :raises Exception: they cannot be read; whoever serves them says so and goes on.
        """
        return generate_latest(self._registry)

    def close(self) -> None:
        """Let go of the meter provider. Waits for nothing: nothing is sent anywhere from here."""
        try:
            self._provider.shutdown()
        except Exception as error:
            self._faults.caught("close", error)

    def _histograms(self) -> list[MetricPoints]:
        return self._metrics.histograms()
