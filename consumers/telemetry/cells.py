"""Numbers that are cheap to write and are read when somebody asks.

The SDK's own instruments copy, check and hash the attributes of every measurement, some 10 µs each, and an attempt
makes five of them. Here the attributes are resolved once, to a cell, and a measurement is an addition. Counters reach
the SDK as observable instruments. For histograms it has no such instrument, so their points are put beside the SDK's
own when a reader has collected (`CellReader`); readers and exporters see the same as if the SDK had made them.

Cells belong to the event loop's thread; readers on other threads would see counts and sums of different moments.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from time import time_ns
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.metrics.export import Metric as MetricPoints
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry

from consumers.telemetry.names import OTHER, Histogram, Metric

MAX_CELLS = 1000
"""Attribute sets of one metric; what comes after them is counted in one cell of `_OTHER`s."""


class Count:
    """A number that only grows."""

    __slots__ = ("attributes", "value")

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self.attributes = attributes
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Count."""
        self.value += amount


class Distribution:
    """How many values fell into which bucket, and their sum. A bucket holds its upper bound."""

    __slots__ = ("attributes", "bounds", "counts", "high", "low", "since_ns", "total")

    def __init__(self, attributes: Mapping[str, str], bounds: tuple[float, ...]) -> None:
        self.attributes = attributes
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.low, self.high = math.inf, -math.inf
        self.since_ns = time_ns()

    def record(self, value: float) -> None:
        """Take a value. Negative ones, made by clocks that disagree, count as 0; what is not finite is dropped."""
        if not 0.0 <= value < math.inf:
            if not math.isfinite(value):
                return
            value = 0.0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    def point(self, now_ns: int) -> HistogramDataPoint:
        """Return what was recorded so far as the SDK's data point."""
        return HistogramDataPoint(
            attributes=dict(self.attributes),
            start_time_unix_nano=self.since_ns,
            time_unix_nano=now_ns,
            count=sum(self.counts),
            sum=self.total,
            bucket_counts=tuple(self.counts),
            explicit_bounds=self.bounds,
            min=self.low,
            max=self.high,
        )


class Counts:
    """All cells of one counter."""

    def __init__(self, meter: Meter, metric: Metric) -> None:
        self._cells: dict[tuple[tuple[str, str], ...], Count] = {}
        meter.create_observable_counter(metric.name, [self._observe], unit=metric.unit, description=metric.description)

    def cell(self, attributes: Mapping[str, str]) -> Count:
        """Return the cell of these attributes."""
        attributes = _bounded(attributes, self._cells)
        return self._cells.setdefault(tuple(attributes.items()), Count(attributes))

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(cell.value, cell.attributes) for cell in self._cells.values()]


class Distributions:
    """All cells of one histogram."""

    def __init__(self, metric: Histogram) -> None:
        self._metric = metric
        self._cells: dict[tuple[tuple[str, str], ...], Distribution] = {}

    def cell(self, attributes: Mapping[str, str]) -> Distribution:
        """Return the cell of these attributes."""
        attributes = _bounded(attributes, self._cells)
        return self._cells.setdefault(tuple(attributes.items()), Distribution(attributes, self._metric.bounds))

    def points(self, now_ns: int) -> list[HistogramDataPoint]:
        """Return the data points of all cells that took a value."""
        return [cell.point(now_ns) for cell in self._cells.values() if cell.high >= 0.0]


def _bounded(attributes: Mapping[str, str], cells: Mapping[Any, Any]) -> Mapping[str, str]:
    # A lone surrogate in one value would make the whole exposition unwritable.
    clean = {name: value.encode("utf-8", "replace").decode() for name, value in attributes.items()}
    return clean if len(cells) < MAX_CELLS or tuple(clean.items()) in cells else dict.fromkeys(clean, OTHER)


def histogram(metric: Histogram, points: list[HistogramDataPoint]) -> MetricPoints:
    """Return the SDK's form of a histogram with these cumulative points."""
    return MetricPoints(
        name=metric.name,
        description=metric.description,
        unit=metric.unit,
        data=HistogramPoints(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE),
    )


class CellReader(PrometheusMetricReader):
    """Serves the SDK's metrics to Prometheus, together with ours.

    :param registry: a registry of its own, so that two in one process do not meet.
    :param extra: makes our histograms when the SDK has collected; must not raise.
    """

    def __init__(
        self, registry: CollectorRegistry, scope: InstrumentationScope, extra: Callable[[], list[MetricPoints]]
    ) -> None:
        super().__init__(scope_info_enabled=False, registry=registry)
        self._scope = scope
        self._extra = extra

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        super()._receive_metrics(with_cells(metrics_data, self._scope, self._extra()), timeout_millis, **kwargs)


def with_cells(data: MetricsData, scope: InstrumentationScope, extra: list[MetricPoints]) -> MetricsData:
    """Return what was collected with our metrics in it, under the resource that the rest has."""
    ours = ScopeMetrics(scope=scope, metrics=extra, schema_url=scope.schema_url or "")
    first, *others = data.resource_metrics
    widened = ResourceMetrics(
        resource=first.resource, scope_metrics=[*first.scope_metrics, ours], schema_url=first.schema_url
    )
    return MetricsData(resource_metrics=[widened, *others])
