"""What the judge is given: facts about every message and every process, from both sides of the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from soak_parts.mail import Mail
from soak_parts.slots import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFact:
    """A message on record."""

    state: str
    reason: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFact:
    """An attempt on record, of a message that is on record or was processed after several of them.

    :param pid: of the process that made it; None if that is not known any more.
    """

    message_id: str
    generation: int
    number: int
    outcome: str
    charged: bool
    alone: bool
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFact:
    """What an operator did to a message, as it stands on record.

    :param event: "replayed" or "discarded".
    :param generation: that the message left, in which it was...
    :param was: ...in this state.
    """

    message_id: str
    event: str
    generation: int
    was: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFact:
    """A dead letter in its queue.

    :param message_id: of the message whose row it names; None if it names none that was published.
    """

    message_id: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFact:
    """An exhaustion record."""

    id: UUID
    message_id: str
    generation: int
    acknowledged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the database says.

    :param effects: how many each message has.
    :param processed: messages that have a receipt.
    :param strangers: receipts of no message that was published.
    :param told: how often the service was told of each exhaustion record.
    """

    effects: Mapping[str, int]
    processed: frozenset[str]
    strangers: int
    rows: Mapping[str, RowFact]
    attempts: Sequence[AttemptFact]
    operations: Sequence[OperationFact]
    records: Sequence[RecordFact]
    told: Mapping[UUID, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the fleet's configuration allows a message."""

    max_attempts: int
    max_aborts: int


@dataclass(slots=True, kw_only=True)
class Said:
    """What the commands said that they have done. An answer that was lost is not among it.

    :param replayed: messages, each with the generation that it left.
    :param discarded: messages.
    :param kills: how often a replay was killed.
    """

    replayed: set[tuple[str, int]] = field(default_factory=set)
    discarded: set[str] = field(default_factory=set)
    kills: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is judged.

    :param sent: how often each message was sent to the broker, the sends included whose confirm was lost.
    :param handled: the attempts whose handler was called, by message and generation.
    :param killers: the message that killed a process, by the process's id.
    :param starts: every process.
    :param said: what the operator's commands said that they have done.
    :param letters: what the dead-letter queue holds.
    :param left: messages in each other queue, once the fleet has stopped.
    :param not_given_back: what the fleet held of the database when it had nothing to do.
    :param alarms: lines of the logs that have no explanation.
    """

    published: Mapping[str, Mail]
    sent: Mapping[str, int]
    tables: Tables
    handled: Mapping[tuple[str, int], frozenset[str]]
    killers: Mapping[int, str]
    starts: Sequence[Start]
    said: Said
    letters: Sequence[LetterFact]
    left: Mapping[str, int]
    not_given_back: Sequence[str]
    alarms: Sequence[str]
    limits: Limits
