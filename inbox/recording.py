"""Putting an attempt without effects on record, under the key's lock.

Where the claim's savepoint can be reached, effects are undone and the record is written in the claim's own transaction:
there is no moment in which the key is free and the failure unknown. Where it cannot (a handler that does not end, a
transaction that it ended), the session goes, and the record is written by claim id on a new one.
"""

from __future__ import annotations

import asyncio

from inbox import statements
from inbox.claiming import Claim, CommitUnknown, Recorded, StatementFailed, open_session
from inbox.judging import Failure
from inbox.outcomes import Reject, Retry
from inbox.safe_text import MAX_NAME_TEXT, error_class, error_text, error_trace, harmless
from pools import Pool

_TRIES = 40
_PAUSE_S = 0.25


async def record_in_place(claim: Claim, failure: Failure) -> Recorded | None:
    """Roll back to the claim, record, COMMIT, and close the claim. None: the claim's savepoint is out of reach.

    :raises StatementFailed, CommitUnknown: nothing is known to be on record.
    :raises AttemptLost: somebody else has settled the attempt.
    """
    try:
        await claim.call(statements.roll_back_to(claim.attempt.claim_id))
    except StatementFailed:
        return None
    recorded = await _write(claim, failure)
    await claim.commit(statements.COMMIT, sent="failure.sent", answered="failure.committed")
    await claim.close()
    return recorded


async def record_elsewhere(pool: Pool, claim: Claim, failure: Failure) -> Recorded:
    """Record by claim id on another session, once the lost one has let the key go.

    :raises StatementFailed, CommitUnknown: nothing is known to be on record, or somebody else has settled the message.
    :raises AttemptLost: somebody else has settled the attempt.
    """
    sql = statements.claim(claim.message.key, claim.attempt.claim_id)
    for _ in range(_TRIES):
        checkout, tag = await open_session(pool, sql)
        other = Claim(
            claim.message,
            claim.policy,
            claim.member_id,
            checkout,
            claim.attempt,
            counted=claim.counted,
            alone=claim.alone,
            opened_at=claim.opened_at,
        )
        try:
            if tag == ("SELECT 3" if claim.counted else "SELECT 0"):
                recorded = await _write(other, failure)
                await other.commit(statements.COMMIT, sent="failure.sent", answered="failure.committed")
                await checkout.release()
                return recorded
            await other.call(statements.ROLLBACK)
        except BaseException:
            checkout.terminate()
            raise
        await checkout.release()
        if tag != "SELECT 1":
            break  # somebody else has written about this message meanwhile: their word stands
        await asyncio.sleep(_PAUSE_S)
    raise CommitUnknown("the lost session still holds the message's lock, or another worker has settled it")


async def _write(claim: Claim, failure: Failure) -> Recorded:
    error = failure.error
    return await claim.record(
        failure.outcome,
        error_class=None if error is None else error_class(error),
        error_text=None if error is None else error_text(error),
        # An answer is no error: where it was raised tells nobody anything.
        error_trace=None if error is None or isinstance(error, (Reject, Retry)) else error_trace(error),
        reason=None if failure.reason is None else harmless(failure.reason, MAX_NAME_TEXT),
        after_s=failure.after_s,
        pacing_s=failure.pacing_s,
    )
