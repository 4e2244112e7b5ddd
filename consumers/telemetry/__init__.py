"""Telemetry: metrics for Prometheus, spans for whoever configured a tracer, and the loop's lag. It fails open.

`Telemetry.create` once per process; `telemetry.consumer(...)` once per consumer, handed to its lanes.
"""

from consumers.telemetry.consumer import BrokerOperation, ConsumerTelemetry
from consumers.telemetry.facade import Telemetry
from consumers.telemetry.names import Operation, outcome_label, result_label
from consumers.telemetry.spans import Span

__all__ = ["BrokerOperation", "ConsumerTelemetry", "Operation", "Span", "Telemetry", "outcome_label", "result_label"]
