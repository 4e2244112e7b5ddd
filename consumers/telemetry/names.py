"""Every name that telemetry gives away: spans, attributes, metrics, values. Renames of the conventions end here.

The `messaging.*`, `db.*` and `error.*` names are those of the OpenTelemetry semantic conventions 1.44, where messaging
is still in development; `inbox.*` is ours and says what the conventions have no word for. No label of a metric may take
its values from messages: ids, routing keys and error texts are for spans and logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from inbox import tries
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

SCOPE: Final = "inbox-fleet"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

# Attributes of the conventions.
MESSAGING_SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
DESTINATION_TEMPLATE: Final = "messaging.destination.template"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
ROUTING_KEY: Final = "messaging.rabbitmq.destination.routing_key"
ERROR_TYPE: Final = "error.type"
POOL_NAME: Final = "db.client.connection.pool.name"
CONNECTION_STATE: Final = "db.client.connection.state"
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"

# Attributes of our own.
CONSUMER: Final = "inbox.consumer"
ATTEMPT: Final = "inbox.attempt"
GENERATION: Final = "inbox.generation"
CLAIM_ID: Final = "inbox.claim_id"
REDELIVERED: Final = "inbox.redelivered"
OUTCOME: Final = "inbox.outcome"
MESSAGE_TYPE: Final = "inbox.message_type"

# Labels of our own metrics: short, since people write them in queries.
L_CONSUMER: Final = "consumer"
L_OUTCOME: Final = "outcome"
L_TYPE: Final = "type"
L_STEP: Final = "step"
L_PLACE: Final = "place"
L_RESULT: Final = "result"
L_STATE: Final = "state"
L_WHAT: Final = "what"
L_VERSION: Final = "version"
L_SERVICE: Final = "service"
L_SCHEMA: Final = "schema"

# Values.
RABBITMQ: Final = "rabbitmq"
DEFAULT_EXCHANGE: Final = "amq.default"
OTHER: Final = "_OTHER"
"""Stands for every value that is not among the known ones."""


class Operation(str, Enum):
    """What is done at the broker, by the word of the protocol or of this product."""

    CONSUME = "consume"
    PROCESS = "process"
    ACK = "ack"
    REQUEUE = "requeue"
    PUBLISH = "publish"


OPERATION_TYPES: Final = {
    Operation.CONSUME: "receive",
    Operation.PROCESS: "process",
    Operation.ACK: "settle",
    Operation.REQUEUE: "settle",
    Operation.PUBLISH: "send",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name, unit (UCUM, braces for things that are counted) and help text."""

    name: str
    unit: str
    description: str


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """A metric that keeps how values are distributed.

    :param bounds: upper bounds of its buckets, rising.
    """

    bounds: tuple[float, ...]


_ADVISED = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_LONG = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
_LAG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# Metrics of the conventions.
PROCESS_DURATION: Final = Histogram(
    "messaging.process.duration", "s", "Duration of processing operation, from the claim to its end.", _ADVISED
)
OPERATION_DURATION: Final = Histogram(
    "messaging.client.operation.duration",
    "s",
    "Duration of messaging operation initiated by a producer or consumer client.",
    _ADVISED,
)
SENT_MESSAGES: Final = Metric(
    "messaging.client.sent.messages", "{message}", "Number of messages producer attempted to send to the broker."
)
CONSUMED_MESSAGES: Final = Metric(
    "messaging.client.consumed.messages", "{message}", "Number of messages that were delivered to the application."
)
CONNECTION_COUNT: Final = Metric(
    "db.client.connection.count", "{connection}", "Connections that are currently in the state described by the label."
)
CONNECTION_MAX: Final = Metric(
    "db.client.connection.max", "{connection}", "The maximum number of open connections allowed."
)
PENDING_REQUESTS: Final = Metric(
    "db.client.connection.pending_requests", "{request}", "Requests for an open connection that wait now."
)
CONNECTION_TIMEOUTS: Final = Metric(
    "db.client.connection.timeouts", "{timeout}", "Waits for a connection that were given up at their deadline."
)
WAIT_TIME: Final = Histogram(
    "db.client.connection.wait_time", "s", "Time it took to obtain an open connection from the pool.", ()
)

# Metrics of our own.
ATTEMPTS: Final = Metric("inbox.attempts", "{attempt}", "Deliveries by what became of them.")
CRITICAL_TIME: Final = Histogram(
    "inbox.critical_time", "s", "From the time a message names as its publication to the commit of its effect.", _LONG
)
LANES: Final = Metric("inbox.lanes", "{lane}", "Lanes that a consumer has.")
LANES_BUSY: Final = Metric("inbox.lanes.busy", "{lane}", "Lanes that are working on a delivery now.")
BREAKER_OPEN: Final = Metric("inbox.breaker.open", "", "1 while a consumer holds back because of a fault, else 0.")
SETTLEMENTS_DROPPED: Final = Metric(
    "inbox.settlements.dropped", "{settlement}", "Settlements that were too late: their channel was gone."
)
PARKED: Final = Metric("inbox.parked", "{message}", "Copies that were put into a parking queue and confirmed.")
EXHAUSTIONS: Final = Metric(
    "inbox.exhaustions", "{try}", "Tries to hand an exhaustion record to its consumer, by what became of them."
)
EXHAUSTIONS_UNACKNOWLEDGED: Final = Metric(
    "inbox.exhaustions.unacknowledged",
    "{record}",
    "Exhaustion records that nobody has acknowledged, in the whole database: the same in each process.",
)
OPEN_MESSAGES: Final = Metric(
    "inbox.messages.open",
    "{message}",
    "Unfinished messages on record, counted up to max_open, in the whole database: the same in each process.",
)
FULL: Final = Metric("inbox.full", "", "1 while a consumer begins no message that is not on record, else 0.")
SWEPT: Final = Metric(
    "inbox.swept", "{message}", "Messages that this process's sweep has moved on, by what became of them."
)
REPUBLISHED: Final = Metric(
    "inbox.republished", "{message}", "Tries of this process to publish what a row owes, by what became of them."
)
REMOVED: Final = Metric("inbox.removed", "{row}", "Rows and partitions that this process removed after their time.")
LOOP_LAG: Final = Histogram("inbox.loop.lag", "s", "How late the event loop ran what was due.", _LAG)
BUILD_INFO: Final = Metric("inbox.build.info", "", "What runs here; always 1.")
TELEMETRY_FAULTS: Final = Metric("inbox.telemetry.faults", "{fault}", "Errors inside telemetry, none of which counted.")
LOG_LINES_LOST: Final = Metric("inbox.log_lines.lost", "{line}", "Log lines that could not be written.")


def outcome_label(outcome: Outcome) -> str:
    """Return the word for an outcome that metrics, spans and logs share.

    A message that waits because its attempt failed is `waiting`; one that waits uncharged is `aborted`.
    """
    match outcome:
        case Processed():
            return "processed"
        case Duplicate():
            return "duplicate"
        case Absorbed():
            return "absorbed"
        case Contended():
            return "contended"
        case Undecided():
            return "undecided"
        case Early():
            return "early"
        case Full():
            return "full"
        case Unkept():
            return "unkept"
        case Waiting(charged=charged):
            return "waiting" if charged else "aborted"
        case Ended(state=state):
            return state.value
        case Unknown():
            return "unknown"
        case Unavailable():
            return "unavailable"
        case Stopped():
            return "stopped"
        case _:
            assert_never(outcome)


def result_label(outcome: tries.TryOutcome) -> str:
    """Return the word for what became of a try of an exhaustion record that metrics and logs share."""
    match outcome:
        case tries.Acknowledged():
            return "acknowledged"
        case tries.Failed():
            return "failed"
        case tries.Aborted():
            return "aborted"
        case tries.Stuck():
            return "stuck"
        case tries.Lost():
            return "lost"
        case tries.Unknown():
            return "unknown"
        case tries.Unavailable():
            return "unavailable"
        case tries.Skipped():
            return "skipped"
        case _:
            assert_never(outcome)
