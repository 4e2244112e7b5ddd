"""What an attempt without effects is worth: a charged failure, a fault of nobody's, or something already decided.

Pure: looks at errors and at the tx they passed through, and writes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import assert_never

from inbox.claiming import Recorded, StatementFailed
from inbox.errors import TxBroken
from inbox.faults import Fault, in_handler, what_aborted
from inbox.outcomes import MAX_WAIT_S, Duplicate, Ended, Reject, Retry, Unknown, Waiting
from inbox.running import GivenUp, Raised, TimedOut
from inbox.safe_text import error_class, error_text
from inbox.states import AttemptOutcome, State
from inbox.tx import Tx

_NOW = (0.0,)


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt without effects, as it will be recorded.

    :param fault: whose it is, where a database error ended the attempt.
    :param of_handler: whether the handler's own statement met it, and not one of the fleet's.
    """

    outcome: AttemptOutcome
    error: BaseException | None = None
    fault: Fault | None = None
    of_handler: bool = True
    reason: str | None = None
    after_s: float | None = None
    pacing_s: tuple[float, ...] | None = None


def judge(ending: Raised | TimedOut | GivenUp, tx: Tx) -> Failure:
    """Return what the end of a handler that did not return is worth."""
    match ending:
        case Raised(Reject() as answer):
            return Failure(AttemptOutcome.REJECTED, answer, reason=_reason(answer))
        case Raised(Retry() as answer):
            return Failure(AttemptOutcome.FAILED, answer, after_s=_after_s(answer))
        case Raised(error):
            faults = tuple(tx.faults)
            return _failure(in_handler(error, faults, closed=False), error)
        case TimedOut(after_s):
            late = TimeoutError(f"the handler ran for more than {after_s:g} s")
            return Failure(AttemptOutcome.TIMED_OUT, late)
        case GivenUp():
            return Failure(AttemptOutcome.ABORTED, pacing_s=_NOW)
        case _:
            assert_never(ending)


def broken(tx: Tx) -> Failure:
    """Return the failure of a handler that left its tx in no state to be committed."""
    return Failure(
        AttemptOutcome.FAILED, TxBroken(tx.broken or "the handler left this tx in the middle of a statement")
    )


def _reason(answer: Reject) -> str:
    # A subclass may have forgotten what its base class keeps.
    reason = getattr(answer, "reason", None)
    return reason if isinstance(reason, str) else error_text(answer)


def _after_s(answer: Retry) -> float | None:
    after_s = getattr(answer, "after_s", None)
    if not isinstance(after_s, (int, float)) or not math.isfinite(after_s):
        return None
    return min(max(after_s, 0.0), MAX_WAIT_S)


def _swallowed(tx: Tx, error: BaseException) -> Failure:
    cause = what_aborted(error, tuple(tx.faults))
    failure = _failure(in_handler(cause, (cause,), closed=False), cause)
    if failure.outcome is AttemptOutcome.ABORTED:
        return failure
    swallowed = TxBroken(
        "the handler swallowed a database error and returned: it aborted the transaction, so nothing can be committed; "
        "let the error pass, or use `async with tx.savepoint()` around what may fail"
    )
    swallowed.__cause__ = cause
    return Failure(AttemptOutcome.FAILED, swallowed)


def _failure(fault: Fault, error: BaseException) -> Failure:
    match fault:
        case Fault.HANDLER:
            return Failure(AttemptOutcome.FAILED, error, fault)
        case Fault.TIME_IS_UP:
            return Failure(AttemptOutcome.TIMED_OUT, error, fault)
        case Fault.RERUN | Fault.PAUSE:
            return Failure(AttemptOutcome.ABORTED, error, fault)
        case Fault.SESSION_LOST:
            # What stood in the way is not there any more when the next attempt starts.
            return Failure(AttemptOutcome.ABORTED, error, fault, pacing_s=_NOW)
        case _:
            assert_never(fault)


def outcome_of(recorded: Recorded, failure: Failure) -> Ended | Waiting:
    """Return what a recorded failure means for the delivery."""
    name = failure.outcome.value if failure.error is None else error_class(failure.error)
    if recorded.state is not State.WAITING:
        return Ended(recorded.state, recorded.number, recorded.reason or "", name)
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


def refused(refusal: StatementFailed, tx: Tx) -> Duplicate | Unknown | Failure:
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
    if not ours:
        return _failure(in_handler(error, (error,), closed=False), error)
    return replace(_failure(refusal.fault, error), of_handler=False, pacing_s=_NOW)
