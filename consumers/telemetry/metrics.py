"""What is measured: cells for the hot path, callbacks for what is only asked when somebody reads.

Own metrics are labelled by consumer and by few fixed words. Message types are labels only where a handler is registered
for them, error classes only up to a bound: everything else is `_OTHER`, so that no sender can fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import time_ns

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from opentelemetry.sdk.metrics.export import Metric as MetricPoints

from consumers.telemetry import names
from consumers.telemetry.cells import Counts, Distributions, histogram
from consumers.telemetry.faults import Faults
from consumers.telemetry.names import Metric
from pools import PoolStatistics

Reading = Callable[[], float]


class Metrics:
    """All instruments of a process.

    :param meter: of this product's own provider.
    """

    def __init__(self, meter: Meter, faults: Faults) -> None:
        self._meter = meter
        self._faults = faults
        self._started_ns = time_ns()
        self._pools: Callable[[], Iterable[PoolStatistics]] = tuple
        self._readings: dict[str, dict[str, Reading]] = {}
        self.attempts = Counts(meter, names.ATTEMPTS)
        self.consumed = Counts(meter, names.CONSUMED_MESSAGES)
        self.sent = Counts(meter, names.SENT_MESSAGES)
        self.parked = Counts(meter, names.PARKED)
        self.exhaustions = Counts(meter, names.EXHAUSTIONS)
        self.swept = Counts(meter, names.SWEPT)
        self.republished = Counts(meter, names.REPUBLISHED)
        self.removed = Counts(meter, names.REMOVED)
        self.settlements_dropped = Counts(meter, names.SETTLEMENTS_DROPPED)
        self.process_duration = Distributions(names.PROCESS_DURATION)
        self.operation_duration = Distributions(names.OPERATION_DURATION)
        self.critical_time = Distributions(names.CRITICAL_TIME)
        self.loop_lag = Distributions(names.LOOP_LAG)
        for metric in (names.LANES, names.LANES_BUSY, names.BREAKER_OPEN, names.OPEN_MESSAGES, names.FULL):
            self._reading(metric)
        self.unacknowledged: dict[tuple[str, str], int] = {}
        self._gauge(names.EXHAUSTIONS_UNACKNOWLEDGED, self._unacknowledged)
        self._counter(names.TELEMETRY_FAULTS, self._faults_by_place)
        self._gauge(names.CONNECTION_COUNT, self._connections)
        self._gauge(names.CONNECTION_MAX, lambda: [Observation(p.size, _pool(p)) for p in self._pools()])
        self._gauge(names.PENDING_REQUESTS, lambda: [Observation(p.waiting, _pool(p)) for p in self._pools()])
        self._counter(names.CONNECTION_TIMEOUTS, lambda: [Observation(p.timeouts, _pool(p)) for p in self._pools()])

    def watch_pools(self, figures: Callable[[], Iterable[PoolStatistics]]) -> None:
        """Read these pools from now on, each time somebody asks."""
        self._pools = figures

    def watch_consumer(self, metric: Metric, consumer: str, reading: Reading) -> None:
        """Read one of the metrics of a consumer's present state from now on, each time somebody asks."""
        self._readings[metric.name][consumer] = reading

    def watch_log_lines_lost(self, reading: Callable[[], int]) -> None:
        """Count what the log could not write."""
        self._counter(names.LOG_LINES_LOST, lambda: [Observation(reading())])

    def build(self, attributes: Mapping[str, str]) -> None:
        """Tell what runs here. Called once."""
        self._gauge(names.BUILD_INFO, lambda: [Observation(1, dict(attributes))])

    def histograms(self) -> list[MetricPoints]:
        """Return every histogram that has a value. Never raises an `Exception`."""
        now_ns = time_ns()
        found = []
        for metric, distributions in (
            (names.PROCESS_DURATION, self.process_duration),
            (names.OPERATION_DURATION, self.operation_duration),
            (names.CRITICAL_TIME, self.critical_time),
            (names.LOOP_LAG, self.loop_lag),
        ):
            if points := distributions.points(now_ns):
                found.append(histogram(metric, points))
        try:
            if points := [self._waits(pool, now_ns) for pool in self._pools()]:
                found.append(histogram(names.WAIT_TIME, points))
        except Exception as error:
            self._faults.caught("metric.read", error)
        return found

    def _waits(self, pool: PoolStatistics, now_ns: int) -> HistogramDataPoint:
        # A pool keeps the number, the sum and the longest of its waits: a histogram with one bucket.
        waits = pool.acquires + pool.timeouts
        return HistogramDataPoint(
            attributes=_pool(pool),
            start_time_unix_nano=self._started_ns,
            time_unix_nano=now_ns,
            count=waits,
            sum=pool.waited_s_total,
            bucket_counts=(waits,),
            explicit_bounds=(),
            min=0.0,
            max=pool.waited_s_max,
        )

    def _connections(self) -> list[Observation]:
        return [
            Observation(number, {**_pool(pool), names.CONNECTION_STATE: state})
            for pool in self._pools()
            for state, number in (("used", pool.in_use), ("idle", pool.idle))
        ]

    def _unacknowledged(self) -> list[Observation]:
        return [
            Observation(number, {names.L_CONSUMER: consumer, names.L_STATE: state})
            for (consumer, state), number in self.unacknowledged.items()
        ]

    def _faults_by_place(self) -> list[Observation]:
        return [Observation(number, {names.L_PLACE: place}) for place, number in self._faults.counts.items()]

    def _reading(self, metric: Metric) -> None:
        readings: dict[str, Reading] = {}
        self._readings[metric.name] = readings

        def read() -> list[Observation]:
            found = []
            for consumer, reading in readings.items():
                # One consumer that cannot be read must not hide the others.
                try:
                    found.append(Observation(reading(), {names.L_CONSUMER: consumer}))
                except Exception as error:
                    self._faults.caught("metric.read", error)
            return found

        self._gauge(metric, read)

    def _gauge(self, metric: Metric, read: Callable[[], list[Observation]]) -> None:
        self._meter.create_observable_up_down_counter(
            metric.name, [self._guarded(read)], unit=metric.unit, description=metric.description
        )

    def _counter(self, metric: Metric, read: Callable[[], list[Observation]]) -> None:
        self._meter.create_observable_counter(
            metric.name, [self._guarded(read)], unit=metric.unit, description=metric.description
        )

    def _guarded(self, read: Callable[[], list[Observation]]) -> Callable[[CallbackOptions], list[Observation]]:
        def callback(_: CallbackOptions) -> list[Observation]:
            try:
                return read()
            except Exception as error:
                self._faults.caught("metric.read", error)
                return []

        return callback


def _pool(pool: PoolStatistics) -> dict[str, str]:
    return {names.POOL_NAME: pool.name}
