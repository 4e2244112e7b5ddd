"""What can be asked of a subscription, and how it may be told to wait: values, no behaviour."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SubscriptionState(enum.Enum):
    """What a subscription does now; the values are for people."""

    CONNECTING = "connecting"
    CONSUMING = "consuming"
    WAITING = "waiting to try again"
    QUEUE_MISSING = "queue missing"
    TOPOLOGY_MISMATCH = "topology mismatch"
    PAUSED = "paused"
    STOPPED = "stopped"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTiming:
    """How a subscription waits, in seconds.

    :param first_pause_s: before the first new try; doubles up to `longest_pause_s`, with jitter.
    :param stable_s: having consumed for so long, the next pause is the first one again.
    :param check_every_s: between two looks at what the client knows, which cost nothing.
    :param probe_every_s: between two questions to the broker, which find a line that is half open.
    :param probe_timeout_s: for the answer to such a question.
    :param stalled_after_s: messages wait, there is room for them, and none has come for so long: then the consumer is
        made anew. Doubles each time that this did not help.
    """

    first_pause_s: float = 0.2
    longest_pause_s: float = 10.0
    stable_s: float = 10.0
    check_every_s: float = 1.0
    probe_every_s: float = 15.0
    probe_timeout_s: float = 5.0
    stalled_after_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """What a subscription has seen so far.

    :param unsettled: deliveries of the living channel that are not settled yet.
    :param dropped_settlements: whose channel was gone; the broker delivers these messages again.
    :param consumes: how often consuming began; all but the first are recoveries or resumptions.
    :param server_cancels: how often the broker ended the consumer, mostly because its queue was deleted.
    :param failed_receives: how often `receive` raised.
    :param stalls: how often in a row nothing came although messages waited.
    """

    delivered: int
    unsettled: int
    acked: int
    requeued: int
    dropped_settlements: int
    consumes: int
    server_cancels: int
    failed_receives: int
    stalls: int
