"""What logs say of an attempt: the facts on every line of it, and the one line at its end."""

from __future__ import annotations

from contextvars import Token
from types import TracebackType
from typing import Any, Protocol
from uuid import UUID

from structlog.contextvars import bind_contextvars, reset_contextvars

_ERROR = frozenset({"exhausted", "rejected"})
_WARNING = frozenset({"waiting", "aborted", "unknown", "unavailable"})


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def log(self, level: int, event: str, **facts: Any) -> Any:
        """Log an event at a numeric level of the standard library."""


class AttemptBinding:
    """Facts of one attempt on every line that is logged in this context, until the block ends.

    They are bound as soon as this object exists, so a task that lives for one attempt needs no `with`.
    """

    __slots__ = ("_tokens",)

    def __init__(self, facts: dict[str, object]) -> None:
        self._tokens: dict[str, Token[Any]] = dict(bind_contextvars(**facts))

    def __enter__(self) -> AttemptBinding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            reset_contextvars(**self._tokens)
        except (ValueError, RuntimeError):
            # Left twice, or in another context than it was entered in, with which the facts die. Logs decide nothing.
            return


def bind_attempt(
    *,
    consumer: str,
    message_id: str,
    type: str = "",  # noqa: A002  # the name that the fact has on the line
    attempt: int | None = None,
    claim_id: UUID | None = None,
) -> AttemptBinding:
    """Put an attempt's identity on every log line of this context, on those of threads and tasks started in it too.

    Use it as a context manager in a task that serves many messages; call it plainly in a task of its own. Nested
    bindings add to each other, so what is not known yet (attempt, claim_id) is bound by an inner one.

    :param attempt: which try it is, from 1; None while the inbox has not said.
    """
    facts: dict[str, object] = {"consumer": consumer, "message_id": message_id}
    if type:
        facts["message_type"] = type
    if attempt is not None:
        facts["attempt"] = attempt
    if claim_id is not None:
        facts["claim_id"] = str(claim_id)
    return AttemptBinding(facts)


def attempt_settled(
    log: Log,
    *,
    consumer: str,
    message_id: str,
    type: str,  # noqa: A002  # the name that the fact has on the line
    attempt: int | None,
    outcome: str,
    duration_s: float,
    redelivered: bool,
    error_class: str | None = None,
    delay_s: float | None = None,
    **facts: object,
) -> None:
    """Log the one line that sums up an attempt, `attempt.settled`.

    An outcome that ends a message without its effect is an error, one that costs time is a warning, everything else is
    information.

    :param attempt: which try it was; None if nothing was tried (a duplicate, a copy that came early).
    :param outcome: as `consumers.telemetry.outcome_label` names it.
    :param duration_s: from the start of the attempt to the end of its settlement, seconds.
    :param error_class: class of the error that decided it. Its text belongs into the record of the failure.
    :param delay_s: how long the message waits before it is tried again, seconds.
    :param facts: whatever else should stand on the line.
    """
    level = 40 if outcome in _ERROR else 30 if outcome in _WARNING else 20
    if attempt is not None:
        facts["attempt"] = attempt
    if error_class:
        facts["error_class"] = error_class
    if delay_s is not None:
        facts["delay_s"] = round(delay_s, 3)
    log.log(
        level,
        "attempt.settled",
        consumer=consumer,
        message_id=message_id,
        message_type=type,
        outcome=outcome,
        duration_s=round(duration_s, 6),
        redelivered=redelivered,
        **facts,
    )
