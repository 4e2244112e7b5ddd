"""What happened to a message, as lines in the order of time: the answer to an operator's question.

Made of an `inbox.messages.Story` alone. Texts that senders and handlers chose are in it as they are; whoever shows them
has to make them harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from inbox.exhaustions import Exhaustion, ExhaustionState
from inbox.messages import AttemptRecord, HistoryEvent, MessageRow, Story
from inbox.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that happened.

    :param what: in a word or two.
    :param detail: the rest of it.
    :param trace: of the error of an attempt.
    """

    at: datetime
    what: str
    detail: str
    trace: str | None = None


def written(at: datetime | None) -> str:
    """Return a time as it is shown: UTC, to the millisecond."""
    if at is None:
        return ""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def standing(story: Story) -> str:
    """Return where a message stands: its state, `processed`, or that it is not on record any more."""
    if story.processed_at is not None:
        return State.PROCESSED.value
    return story.row.state.value if story.row is not None else "removed"


def prospect(story: Story) -> str:
    """Return what becomes of a message next, as a sentence."""
    row = story.row
    if story.processed_at is not None:
        return "Its effect is committed; a copy that comes is acked and starts nothing."
    if row is None:
        return "Its time on record is over; a copy that comes begins anew."
    match row.state:
        case State.ATTEMPTING:
            sentence = "An attempt has no outcome yet."
        case State.WAITING:
            sentence = _wait(row, story.read_at)
        case State.REJECTED if not row.is_whole:
            sentence = "It has ended, and cannot be replayed: not all of its bytes are on record."
        case State.EXHAUSTED | State.REJECTED:
            sentence = "It has ended; nothing is tried until it is replayed."
        case _:
            sentence = "It has ended; a copy that comes is acked and starts nothing."
    return sentence + (" A copy of it is owed to the dead-letter queue." if row.dead_letter_needed else "")


def _wait(row: MessageRow, now: datetime) -> str:
    overdue = row.due_at is not None and row.due_at <= now
    due = f"{'was' if overdue else 'is'} due at {written(row.due_at)}"
    if row.copy_needed:
        return f"It {due}, and a copy of it is owed to its queue."
    if overdue:
        return f"It {due}; its copy is late or lost, and the sweep has another one made if none comes."
    return f"It waits in the broker, and {due}."


def timeline(story: Story) -> list[Line]:
    """Return all that is on record about a message, the oldest first."""
    return sorted(_lines(story), key=lambda line: line.at)


def _lines(story: Story) -> Iterator[Line]:
    if story.first_seen_at is not None:
        large = story.row is not None and not story.row.is_whole
        why = "it was too large to be begun" if large else "it did not succeed at once"
        yield Line(at=story.first_seen_at, what="on record", detail=f"for the first time: {why}")
    for attempt in story.attempts:
        yield _attempt(attempt)
    for event in story.history:
        if event.event != State.PROCESSED.value:
            yield _operation(event)
    for record in story.exhaustions:
        yield from _exhaustion(record)
    yield from _end(story)


def _attempt(attempt: AttemptRecord) -> Line:
    detail = [f"on {_process(attempt)}"]
    if attempt.finished_at is None:
        detail.append("it has no outcome yet")
    else:
        detail.append(f"for {(attempt.finished_at - attempt.started_at).total_seconds():.3f} s")
        if attempt.outcome != State.PROCESSED.value:
            detail.append("charged" if attempt.charged else "not charged")
    if attempt.alone:
        detail.append("alone in its process")
    error = f": {attempt.error_class}: {attempt.error_text}" if attempt.error_class is not None else ""
    return Line(
        at=attempt.started_at,
        what=f"attempt {attempt.number} {attempt.outcome.replace('_', ' ')}",
        detail=", ".join(detail) + error,
        trace=attempt.error_trace,
    )


def _process(attempt: AttemptRecord) -> str:
    if attempt.host is None:
        return f"a process that is not known any more ({attempt.member_id})"
    return f"{attempt.host}, pid {attempt.pid}, build {attempt.build}"


def _operation(event: HistoryEvent) -> Line:
    job = f", by job {event.replay_id}" if event.replay_id is not None else ""
    after = f" into generation {event.generation + 1}" if event.event == "replayed" else ""
    return Line(
        at=event.at, what=event.event, detail=f"from {event.was}{after} by {event.by_whom}{job}: {event.reason}"
    )


def _exhaustion(record: Exhaustion) -> Iterator[Line]:
    used_up = f"its {record.reason} in generation {record.generation} are used up"
    detail = f"{used_up}; record {record.id} is {_delivery(record)}"
    yield Line(at=record.exhausted_at, what="exhausted", detail=detail)
    if record.acknowledged_at is not None:
        yield Line(
            at=record.acknowledged_at, what="acknowledged", detail=f"record {record.id} by {record.acknowledged_by}"
        )


def _delivery(record: Exhaustion) -> str:
    error = f", last error: {record.try_error}" if record.try_error is not None else ""
    tries = f"after {record.tries} {'try' if record.tries == 1 else 'tries'}{error}"
    match record.state:
        case ExhaustionState.ACKNOWLEDGED:
            return "acknowledged"
        case ExhaustionState.TRYING:
            return f"being tried, {tries}"
        case ExhaustionState.STUCK:
            return f"stuck {tries}: it waits for an operator"
        case ExhaustionState.WAITING:
            return f"not acknowledged, {tries}"


def _end(story: Story) -> Iterator[Line]:
    row = story.row
    if row is not None and row.finished_at is not None and row.state is State.REJECTED:
        yield Line(at=row.finished_at, what="rejected", detail=row.reason or "")
    elif row is not None and row.finished_at is not None and not _is_told(story, row):
        yield Line(at=row.finished_at, what=row.state.value, detail=row.reason or "")
    if story.processed_at is not None:
        yield Line(at=story.processed_at, what="processed", detail="effects and receipt are committed")


def _is_told(story: Story, row: MessageRow) -> bool:
    """Whether the record of its exhaustion, or its history, has a line about this end."""
    return any(each.generation == row.generation for each in story.exhaustions) or any(
        each.event == row.state.value and each.generation == row.generation for each in story.history
    )
