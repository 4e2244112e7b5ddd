"""The delivery of exhaustion records: from a record that is due to an acknowledged one, or to a word on why not.

    begin (committed) → lock the record → handler → acknowledge and COMMIT
                                        ↘ roll back, record the end, COMMIT

Effects and acknowledgement commit together. A try is fenced by its id: beginning another makes it stale, and a stale
try writes nothing. It is begun anew only when its process is dead, has stopped, or is the one that asks: what a process
finds begun by itself has lost its session, since it tries one record of a consumer at a time. A try whose end is not
known is owed all the same, as an attempt is, so that a later death of the process is not taken for its doing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import asyncpg
import uuid_utils.compat

from inbox import statements
from inbox.claiming import (
    DRIVER_ERRORS,
    STATEMENT_TIMEOUT_S,
    CommitUnknown,
    StatementFailed,
    describe,
)
from inbox.company import Company
from inbox.debts import Debts, TryDebt
from inbox.envelope import Attempt, Envelope, ExhaustionRecord, Message
from inbox.errors import ExhaustionLost
from inbox.exhaustions import BEFORE_ALL
from inbox.faults import Fault, in_machine
from inbox.judging import OF_THE_TRANSACTION, Failure, broken, judge, refused
from inbox.points import reach
from inbox.policy import Policy
from inbox.queries import query
from inbox.running import Returned, Runner
from inbox.safe_text import error_class
from inbox.states import AttemptOutcome
from inbox.tries import Aborted, Acknowledged, Due, Failed, Lost, Skipped, Stuck, TryOutcome, Unavailable, Unknown
from inbox.try_session import Try, record_of
from inbox.tx import Tx, end, faults_of, why_broken
from pools import Pool, PoolError, work

_DUE = query("due_exhaustions")
_BEGIN = query("begin_try")
_CLAIM = query("claim_exhaustion")

Handle: TypeAlias = Callable[[ExhaustionRecord, Tx], Awaitable[None]]
"""What is called for a record."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Its last try died: come again alone."""


class Deliverer:
    """Tries exhaustion records of one consumer in one process, one at a time.

    :param pool: the consumer's pool; a try holds one of its connections.
    :param company: shared by all consumers of the process, as are the attempts' own.
    :param debts: likewise.
    :param runner: the consumer's, so that a shutdown reaches its tries as it reaches its attempts.
    :param read: makes a message's envelope from its bytes; must not raise on content.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        member_id: UUID,
        company: Company,
        debts: Debts,
        runner: Runner,
        read: Callable[[Message, Attempt], Envelope],
    ) -> None:
        self._pool = pool
        self._member_id = member_id
        self._company = company
        self._debts = debts
        self._runner = runner
        self._read = read

    async def due(self, consumer: str, *, after: Due | None, limit: int) -> list[Due]:
        """Return records that may be tried now, oldest first.

        :param consumer: by key name.
        :raises PoolError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the database does not answer.
        """
        position = BEFORE_ALL if after is None else (after.exhausted_at, after.id)
        async with self._pool.acquire() as connection:
            rows = await connection.fetch(_DUE, consumer, *position, limit, timeout=STATEMENT_TIMEOUT_S)
        return [Due(**row) for row in rows]

    async def attempt(
        self, due: Due, policy: Policy, handle: Handle, *, may_begin: Callable[[], bool] = lambda: True
    ) -> TryOutcome:
        """Try a record once and return what is durable now.

        :param may_begin: asked when its turn among the process's attempts has come.
        """
        alone = False
        while True:
            async with self._company.alone() if alone else self._company.shared():
                if not may_begin():
                    return Skipped()
                with work():
                    step = await self._opened(due, policy, handle, alone=alone)
            if not isinstance(step, _Suspect):
                return step
            alone = True

    async def _opened(self, due: Due, policy: Policy, handle: Handle, *, alone: bool) -> TryOutcome | _Suspect:
        try:
            checkout = await self._pool.checkout()
        except (*DRIVER_ERRORS, PoolError) as error:
            return Unavailable(describe(error))
        one = Try(due, policy, checkout, uuid_utils.compat.uuid7(), alone)
        try:
            return await self._begun(one, handle)
        except ExhaustionLost:
            checkout.terminate()
            return Lost()
        except CommitUnknown as error:
            self._owe(one)
            return Unknown(str(error))
        except PoolError as error:
            self._owe(one)
            return Unavailable(describe(error))
        except StatementFailed as error:
            self._owe(one)
            return Unavailable(str(error)) if error.fault is Fault.PAUSE else Unknown(str(error))
        except BaseException:
            # The delivery is cancelled, or this machine has a bug.
            self._owe(one)
            raise

    def _owe(self, one: Try) -> None:
        """End the session of a try that may have been counted and has no end on record, and see that it gets one."""
        one.checkout.terminate()
        debt = TryDebt(one.due.id, one.id, one.policy.max_attempts, one.policy.max_aborts)
        self._debts.add(debt, self._company.stay(alone=one.alone))

    async def _begun(self, one: Try, handle: Handle) -> TryOutcome | _Suspect:
        policy = one.policy
        row = await one.fetchrow(
            _BEGIN,
            one.due.id,
            one.id,
            self._member_id,
            one.alone,
            policy.max_attempts,
            policy.max_aborts,
            list(policy.pacing_s),
        )
        assert row is not None  # the function returns one row
        match row["verdict"]:
            case "run":
                reach("exhausted.counted")
                return await self._run(one, handle)
            case "suspect":
                step: TryOutcome | _Suspect = _Suspect()
            case "stuck":
                step = Stuck(row["tries"])
            case "gone" | "undecided" | "early":
                step = Skipped()
            case verdict:
                raise AssertionError(f"unknown verdict {verdict!r}")
        await one.checkout.release()
        return step

    async def _run(self, one: Try, handle: Handle) -> TryOutcome:
        await one.call(statements.BEGIN)
        row = await one.fetchrow(_CLAIM, one.due.id, one.due.key, one.due.generation, one.id)
        if row is None:
            raise one.lost()
        await one.call(statements.savepoint(one.id))
        reach("exhausted.claimed")
        record = record_of(row, self._read)
        tx = Tx(one.checkout.connection)

        async def call(_: Attempt, tx: Tx) -> None:
            await handle(record, tx)

        this = Attempt(record.tries, record.generation, one.id)
        ending = await self._runner.run(call, this, tx, timeout_s=one.policy.handler_timeout_s)
        at_rest = await end(tx)
        if one.closed:
            self._owe(one)
            met = faults_of(tx)
            return Unknown(describe(met[-1]) if met else "SessionLost")
        if isinstance(ending, Returned):
            reach("exhausted.effects")
            verdict = await self._acknowledged(one, tx, record) if at_rest else broken(tx)
            if not isinstance(verdict, Failure):
                return verdict
            failure = verdict
        else:
            failure = judge(ending, tx, one.policy.faults)
        # A session that forgot its statements is alive but of no use any more.
        return await self._failed(one, failure, at_rest=at_rest and failure.fault is not Fault.SESSION_LOST)

    async def _acknowledged(self, one: Try, tx: Tx, record: ExhaustionRecord) -> Acknowledged | Failure:
        """Commit effects and acknowledgement together, or say why that cannot be."""
        if why_broken(tx) is not None:
            return broken(tx)
        try:
            await one.commit(statements.acknowledge(record.id, record.key, one.id))
        except StatementFailed as refusal:
            return await self._refused(one, tx, refusal)
        await one.checkout.release()
        return Acknowledged(record.tries)

    async def _refused(self, one: Try, tx: Tx, refusal: StatementFailed) -> Failure:
        """Find out whether the acknowledgement would be refused without the handler's effects too, and judge."""
        alone: StatementFailed | None = None
        if getattr(refusal.error, "sqlstate", "") not in OF_THE_TRANSACTION:
            try:
                await one.call(statements.acknowledge_alone(one.due.id, one.due.key, one.id))
            except StatementFailed as error:
                if one.closed:
                    raise
                alone = error
        verdict = refused(refusal, tx, one.policy.faults, alone=alone)
        if not isinstance(verdict, Failure):  # a second receipt, and none is written here
            raise refusal
        return verdict

    async def _failed(self, one: Try, failure: Failure, *, at_rest: bool) -> TryOutcome:
        """Undo the effects and record how the try ended: under the record's lock where the savepoint can be reached,
        else on another session, when the lost one has let the record go."""
        if at_rest:
            try:
                await one.call(statements.roll_back_to(one.id))
            except StatementFailed:
                at_rest = False
        if at_rest:
            row = await one.end(failure)
            await one.commit(statements.COMMIT)
            await one.checkout.release()
        else:
            one.checkout.terminate()
            row = await self._ended_elsewhere(one, failure)
        if failure.fault is Fault.PAUSE and not failure.of_handler and failure.error is not None:
            return Unavailable(describe(failure.error))
        name = failure.outcome.value if failure.error is None else error_class(failure.error)
        if row["stuck"]:
            return Stuck(row["tries"], name)
        if failure.outcome is AttemptOutcome.ABORTED:
            return Aborted(row["delay_s"], name)
        return Failed(row["tries"], row["delay_s"], name)

    async def _ended_elsewhere(self, one: Try, failure: Failure) -> asyncpg.Record:
        # The statement waits for the record as long as a lock may be waited for, which is longer than the server takes
        # to see that a client has gone. If that fails, this try is owed.
        try:
            checkout = await self._pool.checkout()
        except DRIVER_ERRORS as error:
            raise StatementFailed(in_machine(error, closed=False), error) from error
        other = Try(one.due, one.policy, checkout, one.id, one.alone)
        async with other.supervised():
            row = await other.end(failure)
        await checkout.release()
        return row
