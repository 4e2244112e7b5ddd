"""The attempt machine: from one delivery to one committed effect, or to a durable word on why not.

    claim → handler → stamp and COMMIT          the caller acks
                    ↘ roll back, record, COMMIT   the caller waits in the broker, or acks what became terminal

The key's lock covers the whole life of an attempt, the record of its failure included. A first delivery takes the hot
path: nothing is written before the outcome is known. A redelivery, or a message with a row, takes the counted path:
lock, count, run, on one session, so a start can never land after its lane has lost the lock. So does a message that is
too large, which goes aside there unless it has a row (`inbox.oversize`). Which of both, and what each verdict means, is
decided here and nowhere else; what a state may become stands in `inbox.states` and in the schema's functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import uuid_utils.compat

from inbox import statements
from inbox.claiming import Claim, StatementFailed, open_session
from inbox.company import Company
from inbox.debts import Debts
from inbox.envelope import Attempt, Message
from inbox.outcomes import (
    Absorbed,
    Contended,
    Duplicate,
    Early,
    Ended,
    Full,
    Outcome,
    Unavailable,
    Undecided,
    Waiting,
)
from inbox.oversize import Keep, beginning, put_aside
from inbox.performing import Performer, unavailable
from inbox.points import armed, reach
from inbox.policy import Policy
from inbox.running import Handle
from inbox.states import State
from pools import Pool, PoolError, work


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
        self._performer = Performer(pool=pool, debts=debts, company=company)
        self._may_begin = may_begin
        self._added = added
        self.runner = self._performer.runner

    async def attempt(
        self, message: Message, policy: Policy, handle: Handle, *, redelivered: bool, keep: Keep | None = None
    ) -> Outcome:
        """Try a message once and return what is durable now.

        :param handle: called once per attempt, in a task of its own, with the attempt and its tx; and again, with a new
            tx, where a deadlock or the like makes the same attempt run anew.
        :param redelivered: an earlier delivery may have started; such a message is counted before it runs.
        :param keep: given for a message that is too large: unless it is on record already it is not begun, but kept by
            this and rejected.
        """
        counted, alone = redelivered or keep is not None, False
        while True:
            async with self._company.alone() if alone else self._company.shared():
                with work():
                    if counted:
                        step = await self._counted(message, policy, handle, alone=alone, keep=keep)
                    else:
                        step = await self._hot(message, policy, handle, alone=alone)
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
            return unavailable(error, started=False)
        reach("claim.answered")
        claim = Claim(message, policy, self._member_id, checkout, Attempt(1, 1, claim_id), counted=False, alone=alone)
        async with self._supervised(claim):
            match tag:
                case "SELECT 0" if self._may_begin():
                    return await self._performer.perform(claim, handle)
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

    async def _counted(
        self, message: Message, policy: Policy, handle: Handle, *, alone: bool, keep: Keep | None
    ) -> _Step:
        claim_id = uuid_utils.compat.uuid7()
        on_record = message if keep is None else beginning(message)
        try:
            checkout, tag = await open_session(self._pool, statements.hold(message.key))
        except (StatementFailed, PoolError) as error:
            return unavailable(error, started=False)
        reach("claim.answered")
        claim = Claim(on_record, policy, self._member_id, checkout, Attempt(0, 0, claim_id), counted=True, alone=alone)
        async with self._supervised(claim):
            if tag == "SELECT 0":
                return await self._start(claim, handle, message, keep)
            await checkout.release()
            if tag == "SELECT 1":
                return Contended()
            return Unavailable(fault=f"the lock was answered by {tag!r}", started=False)

    async def _start(self, claim: Claim, handle: Handle, message: Message, keep: Keep | None) -> _Step:
        """Ask for the verdict about this copy and, if its start was counted, run it."""
        try:
            starting = asyncio.ensure_future(claim.start(may_begin=keep is None and self._may_begin()))
            if armed():
                await asyncio.sleep(0)  # the statement is written in the task's first step
                reach("start.sent")
            started = await starting
        except StatementFailed as error:
            # The start may have been committed: if the session is lost, so is the answer.
            self._performer.owe(claim)
            claim.checkout.terminate()
            return unavailable(error, started=False)
        match started.verdict:
            case "run":
                reach("start.committed")
                claim.attempt = Attempt(started.number, started.generation, claim.attempt.claim_id)
                try:
                    await claim.call(statements.begin(claim.attempt.claim_id))
                except StatementFailed as error:
                    return self._performer.lost(claim, error)
                return await self._performer.perform(claim, handle)
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
            case "full" if keep is not None:
                try:
                    step = await put_aside(claim, message, keep)
                except StatementFailed as error:
                    claim.checkout.terminate()
                    return unavailable(error, started=False)
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

    @asynccontextmanager
    async def _supervised(self, claim: Claim) -> AsyncIterator[None]:
        """Whatever ends the block, no claim stays open behind it."""
        try:
            yield
        except BaseException:
            # The lane is cancelled, or this machine has a bug: either way the session goes, and what was counted is
            # owed.
            self._performer.owe(claim)
            claim.checkout.terminate()
            raise
