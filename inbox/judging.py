"""What an attempt without effects is worth: a charged failure, a fault of nobody's, or something already decided.

Pure: looks at errors and at the tx they passed through, and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from inbox.claiming import Recorded, StatementFailed
from inbox.errors import TxBroken
from inbox.faults import Fault, in_handler, what_aborted
from inbox.outcomes import Duplicate, Ended, Unknown, Waiting
from inbox.safe_text import error_class
from inbox.states import AttemptOutcome, State
from inbox.tx import Tx


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt without effects, as it will be recorded."""

    outcome: AttemptOutcome
    error: BaseException | None = None
    reason: str | None = None
    after_s: float | None = None
    pacing_s: tuple[float, ...] | None = None


def broken(tx: Tx) -> Failure:
    """Return the failure of a handler that left its tx in no state to be committed."""
    return Failure(
        AttemptOutcome.FAILED, TxBroken(tx.broken or "the handler left this tx in the middle of a statement")
    )


def _swallowed(tx: Tx, error: BaseException) -> Failure | Fault:
    cause = what_aborted(error, tuple(tx.faults))
    fault = in_handler(cause, (cause,), closed=False)
    if fault not in (Fault.HANDLER, Fault.TIME_IS_UP):
        return fault
    swallowed = TxBroken(
        "the handler swallowed a database error and returned: it aborted the transaction, so nothing can be committed; "
        "let the error pass, or use `async with tx.savepoint()` around what may fail"
    )
    swallowed.__cause__ = cause
    return Failure(AttemptOutcome.FAILED, swallowed)


def charged(fault: Fault, error: BaseException) -> Failure | None:
    """Return the failure that is charged for an error, or None if nobody is."""
    match fault:
        case Fault.HANDLER:
            return Failure(AttemptOutcome.FAILED, error)
        case Fault.TIME_IS_UP:
            return Failure(AttemptOutcome.TIMED_OUT, error)
        case Fault.RERUN | Fault.SESSION_LOST | Fault.PAUSE:
            return None
        case _:
            assert_never(fault)


def outcome_of(recorded: Recorded, failure: Failure) -> Ended | Waiting:
    """Return what a recorded failure means for the delivery."""
    if recorded.state is not State.WAITING:
        return Ended(recorded.state, recorded.number, recorded.reason or "")
    name = failure.outcome.value if failure.error is None else error_class(failure.error)
    return Waiting(
        recorded.number, recorded.delay_s, charged=failure.outcome is not AttemptOutcome.ABORTED, error_class=name
    )


def _of_our_tables(error: BaseException) -> bool:
    """Return whether a constraint is one of the inbox's own.

    Its schema alone does not tell: the server puts new tables into the schema of the role's name, if there is one, so
    that of a role named `inbox` holds the service's tables too.
    """
    table = getattr(error, "table_name", None) or ""
    return getattr(error, "schema_name", None) == "inbox" and table.startswith(("receipt", "message", "attempt"))


def refused(refusal: StatementFailed, tx: Tx) -> Duplicate | Unknown | Failure | Fault:
    """Say whose fault it is that the server refused the stamp; nothing was committed."""
    error = refusal.error
    ours = _of_our_tables(error)
    match getattr(error, "sqlstate", ""):
        case "23505" if ours:
            # The second belt: a receipt is there although the key was locked.
            return Duplicate()
        case "IN001":
            return Unknown(fault="AttemptLost")
        case "25P02":
            return _swallowed(tx, error)
        case "3B001" | "25P01":
            return Failure(
                AttemptOutcome.FAILED, TxBroken("the handler ended the attempt's transaction: nothing of it is stamped")
            )
    # What is left is a constraint or a trigger that the handler deferred, or the state of the server.
    fault = refusal.fault if ours else in_handler(error, (error,), closed=False)
    return charged(fault, error) or fault
