"""What an attempt without effects is worth: an answer, a charged failure, or a fault of nobody's.

Pure: looks at errors and at the tx they passed through, and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from inbox.claiming import Recorded, StatementFailed
from inbox.errors import TxBroken
from inbox.faults import Fault, Overrides, in_handler, what_aborted
from inbox.outcomes import MAX_WAIT_S, Duplicate, Ended, Reject, Retry, Waiting
from inbox.running import GivenUp, Raised, TimedOut
from inbox.safe_text import error_class, error_text
from inbox.states import AttemptOutcome, State
from inbox.tx import Tx, faults_of, why_broken

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


def judge(ending: Raised | TimedOut | GivenUp, tx: Tx, overrides: Overrides) -> Failure:
    """Return what the end of a handler that did not return is worth.

    :param overrides: of the consumer; answers, timeouts and shutdowns are not theirs to judge.
    """
    match ending:
        case Raised(error):
            match _answer(error):
                case Reject() as answer:
                    return Failure(AttemptOutcome.REJECTED, answer, reason=_reason(answer))
                case Retry() as answer:
                    return Failure(AttemptOutcome.FAILED, answer, after_s=_after_s(answer))
                case None:
                    return _failure(in_handler(error, tuple(faults_of(tx)), overrides), error)
                case unexpected:
                    assert_never(unexpected)
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
        AttemptOutcome.FAILED, TxBroken(why_broken(tx) or "the handler left this tx in the middle of a statement")
    )


def _answer(error: BaseException) -> Reject | Retry | None:
    """Return the answer that a handler gave, also as a group of nothing but answers; None: it failed.

    Of several answers a rejection counts, else the longest wait. Beside any other error none of them does: it may rest
    on what did not work, and a rejection is final, while a failure asks again.
    """
    answers: list[Reject | Retry] = []
    for each in _members(error):
        if not isinstance(each, (Reject, Retry)):
            return None
        answers.append(each)
    return max(answers, key=lambda each: math.inf if isinstance(each, Reject) else _after_s(each) or 0.0)


def _members(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that groups hold, in their order, and no group."""
    pending = [error]
    while pending:
        current = pending.pop()
        if isinstance(current, BaseExceptionGroup):
            pending.extend(reversed(current.exceptions))
        else:
            yield current


def _reason(answer: Reject) -> str:
    # A subclass may have forgotten what its base class keeps.
    reason = getattr(answer, "reason", None)
    return reason if isinstance(reason, str) else error_text(answer)


def _after_s(answer: Retry) -> float | None:
    after_s = getattr(answer, "after_s", None)
    if not isinstance(after_s, (int, float)) or not math.isfinite(after_s):
        return None
    return min(max(after_s, 0.0), MAX_WAIT_S)


def _swallowed(tx: Tx, error: BaseException, overrides: Overrides) -> Failure:
    cause = what_aborted(error, tuple(faults_of(tx)))
    failure = _failure(in_handler(cause, (cause,), overrides), cause)
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
        case Fault.CHARGE:
            return Failure(AttemptOutcome.FAILED, error, fault)
        case Fault.RERUN | Fault.ABORT | Fault.PAUSE:
            return Failure(AttemptOutcome.ABORTED, error, fault)
        case Fault.SESSION_LOST:
            # What stood in the way is not there any more when the next attempt starts.
            return Failure(AttemptOutcome.ABORTED, error, fault, pacing_s=_NOW)
        case _:
            assert_never(fault)


def outcome_of(recorded: Recorded, failure: Failure) -> Ended | Waiting:
    """Return what a recorded failure means for the delivery."""
    name = failure.outcome.value if failure.error is None else error_class(failure.error)
    pauses = failure.fault is Fault.PAUSE
    if recorded.state is not State.WAITING:
        return Ended(recorded.state, recorded.number, recorded.reason or "", name, pauses=pauses)
    return Waiting(
        recorded.number,
        recorded.delay_s,
        charged=failure.outcome is not AttemptOutcome.ABORTED,
        error_class=name,
        pauses=pauses,
    )


OF_THE_TRANSACTION = frozenset({"25P02", "3B001", "25P01"})
"""Refusals of a stamp that speak of the handler's transaction: aborted, or not the claim's any more."""


def refused(
    refusal: StatementFailed, tx: Tx, overrides: Overrides, *, alone: StatementFailed | None
) -> Duplicate | Failure:
    """Say whose fault it is that the server refused the stamp; nothing was committed.

    An error does not always tell whose statement met it: a missing privilege names neither schema nor table, and a
    handler's deferred trigger can meet whatever the stamp can. So what a stamp without the effects meets is ours.

    :param alone: how it was refused when it was tried without the handler's effects; None if it was not.
    """
    match getattr(refusal.error, "sqlstate", ""):
        case "25P02":
            return _swallowed(tx, refusal.error, overrides)
        case "3B001" | "25P01":
            return Failure(
                AttemptOutcome.FAILED, TxBroken("the handler ended the attempt's transaction: nothing of it is stamped")
            )
    if alone is None:
        # A constraint or a trigger that the handler deferred.
        return _failure(in_handler(refusal.error, (refusal.error,), overrides), refusal.error)
    if getattr(alone.error, "sqlstate", "") == "23505":
        # The second belt: a receipt is there although the key was locked.
        return Duplicate()
    return Failure(AttemptOutcome.ABORTED, alone.error, alone.fault, of_handler=False, pacing_s=_NOW)
