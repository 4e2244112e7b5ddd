"""What logs say of the delivery of an exhaustion record: the facts on its handler's lines, and the line at its end."""

from __future__ import annotations

from uuid import UUID

from consumers.logs.attempts import AttemptBinding, Log
from inbox.envelope import ExhaustionRecord

_INFORMATION = frozenset({"acknowledged"})
_ERROR = frozenset({"stuck"})


def bind_try(*, consumer: str, record: ExhaustionRecord) -> AttemptBinding:
    """Put a record's identity on every log line of this context; as `bind_attempt` does for a message."""
    return AttemptBinding({"consumer": consumer, **_facts(record), "exhaustion_id": str(record.id)})


def exhaustion_tried(
    log: Log,
    *,
    consumer: str,
    exhaustion_id: UUID,
    key: UUID,
    generation: int,
    record: ExhaustionRecord | None,
    result: str,
    duration_s: float,
    error_class: str | None = None,
    delay_s: float | None = None,
) -> None:
    """Log the one line that sums up a try, `exhaustion.tried`.

    :param record: what the handler got; None if it was not called.
    :param result: as `consumers.telemetry.result_label` names it.
    :param duration_s: the wait for its turn in the process included, seconds.
    :param delay_s: how long it waits until it is tried again, seconds.
    """
    facts: dict[str, object] = {} if record is None else _facts(record)
    if error_class:
        facts["error_class"] = error_class
    if delay_s is not None:
        facts["delay_s"] = round(delay_s, 3)
    if result == "stuck":
        facts["advice"] = "repair what is in its way and let it be tried anew, or acknowledge it"
    log.log(
        40 if result in _ERROR else 20 if result in _INFORMATION else 30,
        "exhaustion.tried",
        consumer=consumer,
        exhaustion_id=str(exhaustion_id),
        key=str(key),
        generation=generation,
        result=result,
        duration_s=round(duration_s, 6),
        **facts,
    )


def _facts(record: ExhaustionRecord) -> dict[str, object]:
    return {"message_id": record.envelope.id, "message_type": record.envelope.type, "tries": record.tries}
