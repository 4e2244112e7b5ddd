"""The attempt itself, once its claim is open: handler, stamp and COMMIT, or a durable word on why not.

What is owed when a session is lost is noted here, wherever an attempt may have been counted and its end is not known.
"""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import structlog

from inbox import statements
from inbox.claiming import Claim, CommitUnknown, StatementFailed, describe
from inbox.company import Company
from inbox.debts import Debt, Debts
from inbox.errors import AttemptLost
from inbox.faults import Fault
from inbox.judging import OF_THE_TRANSACTION, Failure, broken, judge, outcome_of, refused
from inbox.outcomes import Outcome, Processed, Stopped, Unavailable, Unknown
from inbox.points import reach
from inbox.recording import record_elsewhere, record_in_place
from inbox.running import GivenUp, Handle, Returned, Runner, TimedOut
from inbox.states import State
from inbox.tx import Tx, end, faults_of, why_broken
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_RERUN_PAUSE_S = 0.05


class Performer:
    """Performs attempts whose claims are open.

    :param pool: where a failure is recorded when the claim's own session is of no use any more.
    :param company: of the process, in which an attempt stays that is owed.
    """

    def __init__(self, *, pool: Pool, debts: Debts, company: Company) -> None:
        self._pool = pool
        self._debts = debts
        self._company = company
        self.runner = Runner()

    async def perform(self, claim: Claim, handle: Handle) -> Outcome:
        """Call the handler, commit its effects with the receipt, or record why not. Gives the session back, or ends it.

        :return: what is durable, or that this is not known.
        """
        # All runs of one attempt share the handler's time, so re-runs make no attempt longer than the broker and the
        # session allow.
        left_s = claim.policy.handler_timeout_s
        for reruns_left in range(claim.policy.max_reruns, -1, -1):
            tx = Tx(claim.connection)
            began = monotonic()
            ending = await self.runner.run(handle, claim.attempt, tx, timeout_s=left_s)
            left_s -= monotonic() - began
            at_rest = await end(tx)
            if claim.closed:
                met = faults_of(tx)
                return self.lost(claim, met[-1] if met else None)
            if isinstance(ending, Returned):
                reach("effects.done")
                verdict = await self._stamp(claim, tx) if at_rest else broken(tx)
                if not isinstance(verdict, Failure):
                    return verdict
                failure = verdict
            else:
                failure = judge(ending, tx, claim.policy.faults)
                at_rest = at_rest and not (isinstance(ending, (TimedOut, GivenUp)) and ending.stuck)
            if failure.fault is Fault.RERUN and reruns_left and left_s > 0 and at_rest:
                try:
                    await claim.call(statements.roll_back_to(claim.attempt.claim_id))
                except StatementFailed as lost:
                    return self.lost(claim, lost)
                await asyncio.sleep(random.uniform(0, _RERUN_PAUSE_S))
                continue
            # A session that forgot its statements is alive but of no use any more.
            at_rest = at_rest and failure.fault is not Fault.SESSION_LOST
            return await self._failed(claim, failure, at_rest=at_rest, given_up=isinstance(ending, GivenUp))
        raise AssertionError("unreachable")

    async def _stamp(self, claim: Claim, tx: Tx) -> Outcome | Failure:
        """Commit effects and receipt together, or say why that cannot be."""
        if why_broken(tx) is not None:
            return broken(tx)
        try:
            await claim.commit(
                statements.stamp(claim.message.key, claim.attempt.claim_id, counted=claim.counted),
                sent="commit.sent",
                answered="commit.answered",
            )
        except (CommitUnknown, AttemptLost) as error:
            return self._unknown(claim, error)
        except StatementFailed as refusal:
            return await self._refused(claim, tx, refusal)
        await claim.close()
        return Processed(claim.attempt.number)

    async def _refused(self, claim: Claim, tx: Tx, refusal: StatementFailed) -> Outcome | Failure:
        """Find out whether the stamp would be refused without the handler's effects too, and judge."""
        alone: StatementFailed | None = None
        if getattr(refusal.error, "sqlstate", "") not in OF_THE_TRANSACTION:
            try:
                await claim.call(
                    statements.stamp_alone(claim.message.key, claim.attempt.claim_id, counted=claim.counted)
                )
            except StatementFailed as error:
                if claim.closed:
                    return self.lost(claim, error)
                alone = error
        verdict = refused(refusal, tx, claim.policy.faults, alone=alone)
        if not isinstance(verdict, Failure):
            self.owe(claim)
            claim.checkout.terminate()
        return verdict

    # Attempts without effects.

    async def _failed(self, claim: Claim, failure: Failure, *, at_rest: bool, given_up: bool) -> Outcome:
        # What the fleet's own statement met is in everybody's way. What a handler's statement met may be its own doing:
        # then the record succeeds, and it waits alone; where the server is at fault, the record fails as well.
        paused = failure.fault is Fault.PAUSE and not failure.of_handler
        if (given_up or paused) and not claim.counted:
            claim.checkout.terminate()
            return Stopped() if given_up else unavailable(failure.error, started=True)
        try:
            recorded = await record_in_place(claim, failure) if at_rest else None
            if recorded is None:
                claim.checkout.terminate()
                recorded = await record_elsewhere(self._pool, claim, failure)
        except (StatementFailed, CommitUnknown, AttemptLost, PoolError) as error:
            unknown = self._unknown(claim, error)
            if given_up:
                return Stopped()
            if isinstance(error, PoolError) or (isinstance(error, StatementFailed) and error.fault is Fault.PAUSE):
                return unavailable(error, started=True)
            return unknown
        if recorded.state is State.WAITING and given_up:
            return Stopped()
        if recorded.state is State.WAITING and paused:
            return unavailable(failure.error, started=True)
        return outcome_of(recorded, failure)

    def lost(self, claim: Claim, error: BaseException | None) -> Outcome:
        """End the session of an attempt of which nothing more can be said."""
        self.owe(claim)
        claim.checkout.terminate()
        return Unknown(fault="SessionLost" if error is None else describe(getattr(error, "error", error)))

    def _unknown(self, claim: Claim, error: Exception) -> Outcome:
        self.owe(claim)
        claim.checkout.terminate()
        return Unknown(fault=describe(error) if isinstance(error, AttemptLost) else str(error))

    def owe(self, claim: Claim) -> None:
        """Note that an attempt which may have been counted has no recorded end, so that it is given one."""
        if claim.may_be_started:
            debt = Debt(claim.message.key, claim.attempt.claim_id, claim.policy.pacing_s)
            self._debts.add(debt, self._company.stay(alone=claim.alone))


def unavailable(error: BaseException | None, *, started: bool) -> Unavailable:
    """Return, and log, that a server does not serve attempts."""
    cause = error.error if isinstance(error, StatementFailed) else error
    fault = "unknown" if cause is None else describe(cause)
    log.warning("attempt.unavailable", fault=str(error) if isinstance(error, PoolError) else fault, started=started)
    return Unavailable(fault=fault, started=started)
