"""The attempt machine: from one delivery to one committed effect, or to a durable word on why not.

    claim → handler → stamp and COMMIT          the caller acks
                    ↘ roll back, record, COMMIT   the caller waits in the broker, or acks what became terminal

The key's lock covers the whole life of an attempt, the record of its failure included. A first delivery takes the hot
path: nothing is written before the outcome is known. A redelivery, or a message with a row, takes the counted path:
lock, count, run, on one session, so a start can never land after its lane has lost the lock. Which of both, and what
each verdict means, is decided here and nowhere else; what a state may become stands in `inbox.states` and in the
schema's functions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias
from uuid import UUID

import structlog
import uuid_utils.compat

from inbox import statements
from inbox.claiming import Claim, CommitUnknown, StatementFailed, describe, open_session
from inbox.company import Company
from inbox.debts import Debt, Debts
from inbox.envelope import Attempt, Message
from inbox.errors import AttemptLost
from inbox.faults import Fault
from inbox.judging import OF_THE_TRANSACTION, Failure, broken, judge, outcome_of, refused
from inbox.outcomes import (
    Absorbed,
    Contended,
    Duplicate,
    Early,
    Ended,
    Full,
    Outcome,
    Processed,
    Stopped,
    Unavailable,
    Undecided,
    Unknown,
    Waiting,
)
from inbox.points import armed, reach
from inbox.policy import Policy
from inbox.recording import record_elsewhere, record_in_place
from inbox.running import GivenUp, Handle, Returned, Runner, TimedOut
from inbox.states import State
from inbox.tx import Tx
from pools import Pool, PoolError, work

log = structlog.get_logger(__name__)

_RERUN_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class _OnRecord:
    """A row of this message exists: take the counted path."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Its last attempt died: come again alone."""


_Step: TypeAlias = Outcome | _OnRecord | _Suspect


class Inbox:
    """Runs attempts of one consumer on one pool.

    :param pool: the consumer's pool; a lane holds at most one of its connections.
    :param member_id: this process start.
    :param company: shared by all consumers of the process.
    :param debts: shared by all consumers of the process.
    :param may_begin: returns whether a message that is not on record may be begun; one that is on record always may.
    :param added: called when an attempt has put a message on record that waits.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        member_id: UUID,
        company: Company,
        debts: Debts,
        may_begin: Callable[[], bool] = lambda: True,
        added: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._member_id = member_id
        self._company = company
        self._debts = debts
        self._may_begin = may_begin
        self._added = added
        self.runner = Runner()

    async def attempt(self, message: Message, policy: Policy, handle: Handle, *, redelivered: bool) -> Outcome:
        """Try a message once and return what is durable now.

        :param handle: called once per attempt, in a task of its own, with the attempt and its tx; and again, with a new
            tx, where a deadlock or the like makes the same attempt run anew.
        :param redelivered: an earlier delivery may have started; such a message is counted before it runs.
        """
        counted, alone = redelivered, False
        while True:
            async with self._company.alone() if alone else self._company.shared():
                with work():
                    opening = self._counted if counted else self._hot
                    step = await opening(message, policy, handle, alone=alone)
            if isinstance(step, _OnRecord):
                counted = True
            elif isinstance(step, _Suspect):
                alone = True
            else:
                if isinstance(step, Waiting) and step.number == 1:
                    self._added()
                return step

    # Opening a claim.

    async def _hot(self, message: Message, policy: Policy, handle: Handle, *, alone: bool) -> _Step:
        claim_id = uuid_utils.compat.uuid7()
        try:
            checkout, tag = await open_session(self._pool, statements.claim(message.key, claim_id))
        except (StatementFailed, PoolError) as error:
            return _unavailable(error, started=False)
        reach("claim.answered")
        claim = Claim(message, policy, self._member_id, checkout, Attempt(1, 1, claim_id), counted=False, alone=alone)
        async with self._supervised(claim):
            match tag:
                case "SELECT 0" if self._may_begin():
                    return await self._run(claim, handle)
                case "SELECT 0":
                    return await self._leave(claim, statements.ROLLBACK, Full())
                case "SELECT 1":
                    return await self._leave(claim, statements.ROLLBACK, Contended())
                case "SELECT 2":
                    return await self._leave(claim, statements.COMMIT, Duplicate())
                case "SELECT 3":
                    return await self._leave(claim, statements.ROLLBACK, _OnRecord())
                case _:
                    checkout.terminate()
                    return Unavailable(fault=f"the claim was answered by {tag!r}", started=False)

    async def _counted(self, message: Message, policy: Policy, handle: Handle, *, alone: bool) -> _Step:
        claim_id = uuid_utils.compat.uuid7()
        try:
            checkout, tag = await open_session(self._pool, statements.hold(message.key))
        except (StatementFailed, PoolError) as error:
            return _unavailable(error, started=False)
        reach("claim.answered")
        claim = Claim(message, policy, self._member_id, checkout, Attempt(0, 0, claim_id), counted=True, alone=alone)
        async with self._supervised(claim):
            if tag == "SELECT 0":
                return await self._start(claim, handle)
            await checkout.release()
            if tag == "SELECT 1":
                return Contended()
            return Unavailable(fault=f"the lock was answered by {tag!r}", started=False)

    async def _start(self, claim: Claim, handle: Handle) -> _Step:
        """Ask for the verdict about this copy and, if its start was counted, run it."""
        try:
            starting = asyncio.ensure_future(claim.start(may_begin=self._may_begin()))
            if armed():
                await asyncio.sleep(0)  # the statement is written in the task's first step
                reach("start.sent")
            started = await starting
        except StatementFailed as error:
            # The start may have been committed: if the session is lost, so is the answer.
            self._owe(claim)
            claim.checkout.terminate()
            return _unavailable(error, started=False)
        match started.verdict:
            case "run":
                reach("start.committed")
                claim.attempt = Attempt(started.number, started.generation, claim.attempt.claim_id)
                try:
                    await claim.call(statements.begin(claim.attempt.claim_id))
                except StatementFailed as error:
                    return self._lost(claim, error)
                return await self._run(claim, handle)
            case "duplicate":
                step: _Step = Duplicate()
            case "terminal":
                step = Absorbed(State(started.state))
            case "early":
                step = Early(started.remaining_s)
            case "undecided":
                step = Undecided()
            case "suspect":
                step = _Suspect()
            case "full":
                step = Full()
            case "exhausted":
                step = Ended(State.EXHAUSTED, started.number, started.state)
            case verdict:
                raise AssertionError(f"unknown verdict {verdict!r}")
        await claim.close()
        return step

    async def _leave(self, claim: Claim, sql: str, step: _Step) -> _Step:
        """End a hot claim that did not run. A session that dies here has nothing to lose."""
        try:
            await claim.call(sql)
        except StatementFailed:
            claim.checkout.terminate()
        await claim.checkout.release()
        return step

    # The attempt itself.

    @asynccontextmanager
    async def _supervised(self, claim: Claim) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            # The lane is cancelled, or this machine has a bug: either way the session goes, and what was counted is
            # owed.
            self._owe(claim)
            claim.checkout.terminate()
            raise

    async def _run(self, claim: Claim, handle: Handle) -> Outcome:
        # All runs of one attempt share the handler's time, so re-runs make no attempt longer than the broker and the
        # session allow.
        left_s = claim.policy.handler_timeout_s
        for reruns_left in range(claim.policy.max_reruns, -1, -1):
            tx = Tx(claim.connection)
            began = monotonic()
            ending = await self.runner.run(handle, claim.attempt, tx, timeout_s=left_s)
            left_s -= monotonic() - began
            at_rest = await tx.end()
            if claim.closed:
                return self._lost(claim, tx.faults[-1] if tx.faults else None)
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
                    return self._lost(claim, lost)
                await asyncio.sleep(random.uniform(0, _RERUN_PAUSE_S))
                continue
            # A session that forgot its statements is alive but of no use any more.
            at_rest = at_rest and failure.fault is not Fault.SESSION_LOST
            return await self._failed(claim, failure, at_rest=at_rest, given_up=isinstance(ending, GivenUp))
        raise AssertionError("unreachable")

    async def _stamp(self, claim: Claim, tx: Tx) -> Outcome | Failure:
        """Commit effects and receipt together, or say why that cannot be."""
        if tx.broken is not None:
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
                    return self._lost(claim, error)
                alone = error
        verdict = refused(refusal, tx, claim.policy.faults, alone=alone)
        if not isinstance(verdict, Failure):
            self._owe(claim)
            claim.checkout.terminate()
        return verdict

    # Attempts without effects.

    async def _failed(self, claim: Claim, failure: Failure, *, at_rest: bool, given_up: bool) -> Outcome:
        # What the fleet's own statement met is in everybody's way. What a handler's statement met may be its own doing:
        # then the record succeeds, and it waits alone; where the server is at fault, the record fails as well.
        paused = failure.fault is Fault.PAUSE and not failure.of_handler
        if (given_up or paused) and not claim.counted:
            claim.checkout.terminate()
            return Stopped() if given_up else _unavailable(failure.error, started=True)
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
                return _unavailable(error, started=True)
            return unknown
        if recorded.state is State.WAITING and given_up:
            return Stopped()
        if recorded.state is State.WAITING and paused:
            return _unavailable(failure.error, started=True)
        return outcome_of(recorded, failure)

    def _lost(self, claim: Claim, error: BaseException | None) -> Outcome:
        self._owe(claim)
        claim.checkout.terminate()
        return Unknown(fault="SessionLost" if error is None else describe(getattr(error, "error", error)))

    def _unknown(self, claim: Claim, error: Exception) -> Outcome:
        self._owe(claim)
        claim.checkout.terminate()
        return Unknown(fault=describe(error) if isinstance(error, AttemptLost) else str(error))

    def _owe(self, claim: Claim) -> None:
        if claim.may_be_started:
            self._debts.add(Debt(claim.message.key, claim.attempt.claim_id, claim.policy.pacing_s))


def _unavailable(error: BaseException | None, *, started: bool) -> Unavailable:
    cause = error.error if isinstance(error, StatementFailed) else error
    fault = "unknown" if cause is None else describe(cause)
    log.warning("attempt.unavailable", fault=str(error) if isinstance(error, PoolError) else fault, started=started)
    return Unavailable(fault=fault, started=started)
