"""What can be configured, and the defaults: one frozen struct per table of the TOML file.

A field named `…_s` is a duration in seconds here and stands in the file without the suffix (`handler_timeout = "30s"`).
Structs hold what one table says; rules between tables are in `checks`. Passwords are not among the values: URLs are
read when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

import msgspec

from consumers.config.quantities import (
    Count,
    CountOrZero,
    Name,
    Plenty,
    Port,
    Reference,
    Seconds,
    Share,
    ShortText,
    Step,
    Text,
)
from consumers.config.sizes import Size

V = TypeVar("V")
Scalar: TypeAlias = str | int | float | bool


def no_entries() -> Mapping[str, V]:
    """Return the default of tables of tables."""
    return MappingProxyType({})


class Settings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename=lambda field: field.removesuffix("_s"),
):
    """Base of all tables."""


class ServiceSettings(Settings, frozen=True, kw_only=True):
    """`[service]`: what this fleet is, and how many processes of it there may be at once.

    :param replicas: the most processes that may run: the autoscaler's maximum, if there is one.
    :param surge: processes that may run on top of these while a new version is rolled out. One by default, since a
        rolling update starts a process before it stops one; 0 fits the strategy Recreate.
    :param start_timeout_s: for each lifespan to open its resources.
    """

    name: Name
    replicas: Count = 1
    surge: CountOrZero = 1
    start_timeout_s: Seconds = Seconds(30)


class HousekeepingSettings(Settings, frozen=True, kw_only=True):
    """`[database.housekeeping]`: the pool of the fleet's own work: members, debts, sweeps, retention."""

    size: Count = 2
    acquire_timeout_s: Seconds = Seconds(5)


class DatabaseSettings(Settings, frozen=True, kw_only=True):
    """`[database]`: where PostgreSQL is. One of url_env, url_file, url; url_env = "DATABASE_URL" if none is given.

    :param connection_share: the part of the server's `max_connections` that this service may take, surge included.
    """

    url_env: Text | None = None
    url_file: Text | None = None
    url: Text | None = None
    connection_share: Share = 0.8
    connect_timeout_s: Seconds = Seconds(10)
    housekeeping: HousekeepingSettings = HousekeepingSettings()


class BrokerSettings(Settings, frozen=True, kw_only=True):
    """`[broker]`: where RabbitMQ is. One of url_env, url_file, url; url_env = "AMQP_URL" if none is given.

    :param heartbeat_s: whole seconds. We notice a dead line after about three times this, the broker after twice.
    :param consumer_timeout_s: the broker's delivery acknowledgement timeout. It cannot be read over AMQP, so it is an
        assumption, and handler timeouts are held below it.
    :param operation_timeout_s: for each answer of the broker that is waited for, a publisher confirm included.
    """

    url_env: Text | None = None
    url_file: Text | None = None
    url: Text | None = None
    heartbeat_s: Seconds = Seconds(10)
    connect_timeout_s: Seconds = Seconds(10)
    operation_timeout_s: Seconds = Seconds(10)
    consumer_timeout_s: Seconds = Seconds(30 * 60)


class PoolSettings(Settings, frozen=True, kw_only=True):
    """`[pools.NAME]`: one pool of connections, for the consumers that name it.

    :param nested: connections that a handler may take beyond its claim.
    :param headroom: connections on top of the structural need.
    :param size: in place of the derived size, to bound the load on the database on purpose.
    """

    name: Name
    nested: CountOrZero = 0
    headroom: CountOrZero = 1
    size: Count | None = None
    acquire_timeout_s: Seconds = Seconds(5)


class Binding(Settings, frozen=True, kw_only=True):
    """One binding of a work queue: messages of this exchange with this routing key come into it.

    :param exchange_type: if the exchange is this fleet's to declare; else it belongs to somebody, and has to be there.
    """

    exchange: Text
    exchange_type: Literal["direct", "topic", "fanout", "headers"] | None = None
    routing_key: ShortText = ""
    arguments: Mapping[str, Scalar] = msgspec.field(default_factory=no_entries)


class TypeSettings(Settings, frozen=True, kw_only=True):
    """`[consumers.NAME.types."TYPE"]`: what differs for one message type. It wins over the handler's own decorator."""

    max_attempts: Count | None = None
    handler_timeout_s: Seconds | None = None
    pacing_s: tuple[Step, ...] | None = None


FaultAction: TypeAlias = Literal["charge", "rerun", "abort", "pause"]


class ConsumerSettings(Settings, frozen=True, kw_only=True):
    """`[consumers.NAME]`: one queue, its handlers, its lanes and its patience.

    :param handler: "module:attribute" of the `Consumer` with this name.
    :param pool: the pool its lanes run on; the consumer's own name by default.
    :param key_name: the name that message keys are made with, kept when a consumer is renamed.
    :param lanes: attempts that run at once in one process.
    :param look_ahead: deliveries held beyond the running ones; by default a quarter of the lanes, and 2 at least.
    :param queue_arguments: declared with the work queue, as the broker names them (`x-max-length`).
    :param max_attempts: the budget: so many charged attempts, then the message is exhausted.
    :param max_aborts: how many uncharged attempts (outages, shutdowns) a message may need.
    :param pacing_s: the delay before attempt 2, 3, …; the last one repeats.
    :param contention_step_s: how long a copy is parked while another copy of its message is worked on.
    :param max_open: unfinished messages on record at which the consumer begins no other; those on record run on.
    :param max_stored_bytes: body and properties of a message that is begun; a larger one is rejected, its bytes in the
        dead-letter queue, and a prefix of them on record.
    :param unknown_types: what becomes of a message whose type has no handler: recorded as rejected, or processed
        without effects, with a receipt.
    :param dead_letters: whether a copy of each message that ends without effect goes to the queue `QUEUE.dead`.
    :param faults: what an error of a handler means, by SQLSTATE, by class of SQLSTATEs, or by the name of an exception
        type.
    """

    name: Name
    queue: Text
    handler: Reference
    pool: Name = ""
    key_name: Name = ""
    bindings: tuple[Binding, ...] = ()
    lanes: Count = 4
    look_ahead: CountOrZero | None = None
    queue_type: Literal["quorum", "classic"] = "quorum"
    queue_arguments: Mapping[str, Scalar] = msgspec.field(default_factory=no_entries)
    max_attempts: Count = 5
    max_aborts: Count = 20
    pacing_s: tuple[Step, ...] = (Step(0), Step(5), Step(30), Step(300))
    contention_step_s: Step = Step(1)
    handler_timeout_s: Seconds = Seconds(30)
    max_open: Plenty = 100_000
    max_stored_bytes: Size = Size(16 * 2**20)
    unknown_types: Literal["reject", "ignore"] = "reject"
    dead_letters: bool = True
    faults: Mapping[str, FaultAction] = msgspec.field(default_factory=no_entries)
    types: Mapping[str, TypeSettings] = msgspec.field(default_factory=no_entries)

    def __post_init__(self) -> None:
        if not self.pool:
            msgspec.structs.force_setattr(self, "pool", self.name)
        if not self.key_name:
            msgspec.structs.force_setattr(self, "key_name", self.name)
        if self.look_ahead is None:
            msgspec.structs.force_setattr(self, "look_ahead", max(2, self.lanes // 4))

    @property
    def prefetch(self) -> int:
        """How many deliveries the broker may hand out unacknowledged."""
        return self.lanes + (self.look_ahead or 0)

    def held_s(self, handler_timeout_s: float) -> float:
        """Return how long a delivery may stay unacknowledged when every attempt before it takes its whole time."""
        return ((self.look_ahead or 0) / self.lanes + 1) * handler_timeout_s


class BreakerSettings(Settings, frozen=True, kw_only=True):
    """`[breaker]`: how a consumer pauses when database or broker cannot serve it.

    :param first_wait_s: before the first try whether it works again; it doubles up to `longest_wait_s`.
    :param hold_s: deliveries in hand are kept so long, then given back to the broker.
    """

    first_wait_s: Seconds = Seconds(1)
    longest_wait_s: Seconds = Seconds(30)
    hold_s: Seconds = Seconds(60)


class DrainSettings(Settings, frozen=True, kw_only=True):
    """`[drain]`: how a process stops. The steps run one after the other; their sum stays below the grace period.

    :param cancel_timeout_s: for the broker to confirm that no delivery comes any more.
    :param deadline_s: for running attempts to finish; what is left is rolled back and given back, uncharged.
    :param settle_timeout_s: for rolling back, giving back and outstanding confirms.
    :param close_timeout_s: for resources, channels and pools.
    :param grace_period_s: after which the platform kills the process (Kubernetes: terminationGracePeriodSeconds).
    """

    cancel_timeout_s: Seconds = Seconds(5)
    deadline_s: Seconds = Seconds(35)
    settle_timeout_s: Seconds = Seconds(5)
    close_timeout_s: Seconds = Seconds(5)
    grace_period_s: Seconds = Seconds(60)


class HttpSettings(Settings, frozen=True, kw_only=True):
    """`[http]`: the small server for /livez, /readyz and /metrics.

    All interfaces by default: the platform's probes and scrapers come to the pod's address, and nothing there changes
    state or shows message content. Port 0 takes any free one, for several processes on one machine.
    """

    host: Text = "0.0.0.0"
    port: Port = 8080


class LogSettings(Settings, frozen=True, kw_only=True):
    """`[log]`: one event per line on stderr."""

    format: Literal["json", "console"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ReceiptSettings(Settings, frozen=True, kw_only=True):
    """`[receipts]`: how long a processed message is remembered; a copy that comes later is a new message."""

    retention_s: Seconds = Seconds(30 * 86_400)


class OutboxSettings(Settings, frozen=True, kw_only=True):
    """`[outbox]`: the events that handlers stage, and that a relay publishes.

    :param retention_s: how long a sent event is kept, for operators who ask what was sent.
    """

    retention_s: Seconds = Seconds(3 * 86_400)


class RetentionSettings(Settings, frozen=True, kw_only=True):
    """`[retention]`: how long what ended without effect is remembered, and what is on record about it.

    :param every_s: how often one process of the service looks for what is past its time.
    :param terminal_s: messages that ended without effect, from their end on; and processes, from theirs.
    :param exhaustions_s: exhaustion records, from their acknowledgement on.
    :param history_s: what operators did to messages that are not on record any more.
    :param replays_s: replay jobs, from their end on.
    """

    every_s: Seconds = Seconds(60)
    terminal_s: Seconds = Seconds(90 * 86_400)
    exhaustions_s: Seconds = Seconds(90 * 86_400)
    history_s: Seconds = Seconds(365 * 86_400)
    replays_s: Seconds = Seconds(365 * 86_400)


class SweepSettings(Settings, frozen=True, kw_only=True):
    """`[sweep]`: how messages are found that no copy comes for.

    :param every_s: how often one process of the service looks.
    :param slack_s: how long past its time a message is left alone at least. By default what each consumer needs: its
        longest step, three minutes in which the broker tries again, and its longest handler timeout.
    :param at_latest_s: how long past its time a message gets another copy although its queues are never seen empty. A
        day by default, or `slack_s` if that is longer.
    """

    every_s: Seconds = Seconds(30)
    slack_s: Seconds | None = None
    at_latest_s: Seconds | None = None


class MemberSettings(Settings, frozen=True, kw_only=True):
    """`[members]`: how processes know of each other. One whose heartbeat is older than `expiry_s` counts as dead."""

    heartbeat_s: Seconds = Seconds(5)
    expiry_s: Seconds = Seconds(30)
