"""How an attempt ends, as values.

`Reject` and `Retry` are a handler's answers. Everything else here is what the attempt machine tells its caller; each
outcome says what is already durable in the database, and so what may be done to the delivery. Callers match on the
whole `Outcome` union.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from inbox.durations import seconds
from inbox.states import State

MAX_WAIT_S = 366 * 86_400.0
"""The longest that a message may be told to wait: whatever is meant by more, no broker keeps it that long."""


class Reject(Exception):
    """Raised by a handler: this message can never be processed. It becomes `rejected`, bytes kept.

    :param reason: said to operators; made safe for storage, bounded in length.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Retry(Exception):
    """Raised by a handler: undo my effects and try again. Charged like any failure.

    :param after: wait at least this long, a year at most; seconds, or a duration such as "10m". None: the consumer's
        pacing decides.
    :param reason: said to operators.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, after: float | str | None = None) -> None:
        self.reason = reason
        self.after_s: float | None = None if after is None else seconds(after)
        if self.after_s is not None and self.after_s > MAX_WAIT_S:
            raise ValueError(f"a message cannot wait for {after!r}: a year is the most")
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Processed:
    """Effects and receipt are committed: ack."""

    number: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A receipt was there already: ack."""


@dataclass(frozen=True, slots=True)
class Absorbed:
    """The message is terminal; this copy starts nothing: ack."""

    state: State


@dataclass(frozen=True, slots=True)
class Contended:
    """Another copy holds the key: park on the contention step; never acked before, never counted."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """An earlier attempt of a living process has no outcome yet: park on the contention step."""


@dataclass(frozen=True, slots=True)
class Early:
    """The message waits, and its `due_at` has not come: park for the remainder."""

    remaining_s: float


@dataclass(frozen=True, slots=True)
class Full:
    """The consumer has as many unfinished messages on record as it may, and this one is not among them: park it on the
    longest step. Nothing ran, nothing is counted."""


@dataclass(frozen=True, slots=True)
class Unkept:
    """The message is too large to go on record, and nothing else has taken it yet: park it on the longest step. Nothing
    ran, nothing is counted. `problem` says why, for people."""

    problem: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The attempt failed or was aborted on record, and budget is left: wait `delay_s` in the broker (0: requeue).

    `pauses`: what it met is in every message's way, as this consumer has it, so the consumer pauses.
    """

    number: int
    delay_s: float
    charged: bool
    error_class: str
    pauses: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The message became terminal in this attempt: ack. `pauses` as for one that waits. Number 0: it was too large to
    be attempted."""

    state: State
    number: int
    reason: str
    error_class: str | None = None
    pauses: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """The session was lost around COMMIT: requeue, uncounted. The redelivery finds out."""

    fault: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The database cannot serve attempts now: hold the delivery and pause the consumer, named by `fault`.

    `started` says whether a handler ran: if so the next try must take the counted path.
    """

    fault: str
    started: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt was given up for shutdown and rolled back, nothing charged: requeue."""


Outcome: TypeAlias = (
    Processed
    | Duplicate
    | Absorbed
    | Contended
    | Undecided
    | Early
    | Full
    | Unkept
    | Waiting
    | Ended
    | Unknown
    | Unavailable
    | Stopped
)
