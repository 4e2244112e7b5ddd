"""One try of one exhaustion record on one session: what it says to the database, and what is made of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from inbox.claiming import DRIVER_ERRORS, STATEMENT_TIMEOUT_S, StatementFailed, send_commit, simple
from inbox.envelope import Attempt, Envelope, ExhaustionRecord, Message
from inbox.errors import ExhaustionLost
from inbox.faults import AttemptLostError, in_machine
from inbox.judging import Failure
from inbox.outcomes import Reject
from inbox.policy import Policy
from inbox.queries import query
from inbox.safe_text import error_class, error_text, harmless, safe
from inbox.states import AttemptOutcome
from inbox.tries import Due
from pools import Checkout

_END = query("end_try")


@dataclass(slots=True)
class Try:
    """One try of one record, on one session.

    `alone`: nothing else runs in its process.
    """

    due: Due
    policy: Policy
    checkout: Checkout
    id: UUID
    alone: bool

    @property
    def closed(self) -> bool:
        """Whether its session has ended."""
        return self.checkout.connection.is_closed()

    async def fetchrow(self, sql: str, *arguments: object) -> asyncpg.Record | None:
        """Run a statement of ours. Raises ExhaustionLost, StatementFailed."""
        try:
            row: asyncpg.Record | None = await self.checkout.connection.fetchrow(
                sql, *arguments, timeout=STATEMENT_TIMEOUT_S
            )
        except AttemptLostError as error:
            raise self.lost() from error
        except DRIVER_ERRORS as error:
            raise StatementFailed(in_machine(error, closed=self.closed), error) from error
        return row

    async def call(self, sql: str) -> None:
        """Run a simple-protocol call of ours. Raises StatementFailed."""
        await simple(self.checkout.connection, sql)

    async def commit(self, sql: str) -> None:
        """Send a call that ends with COMMIT. Raises ExhaustionLost, StatementFailed, CommitUnknown."""
        try:
            await send_commit(
                self.checkout.connection, sql, sent="exhausted.commit_sent", answered="exhausted.commit_answered"
            )
        except AttemptLostError as error:
            raise self.lost() from error

    def lost(self) -> ExhaustionLost:
        """Return the error of a try that is stale."""
        return ExhaustionLost(record_id=self.due.id, try_id=self.id)

    async def end(self, failure: Failure) -> asyncpg.Record:
        """Record how it ended, without an acknowledgement. Raises as `fetchrow`."""
        match failure.outcome:
            case AttemptOutcome.REJECTED:
                outcome = "rejected"
            case AttemptOutcome.ABORTED:
                outcome = "aborted"
            case _:
                outcome = "failed"
        policy = self.policy
        row = await self.fetchrow(
            _END,
            self.due.id,
            self.due.key,
            self.due.generation,
            self.id,
            outcome,
            _said(failure),
            failure.after_s,
            policy.max_attempts,
            policy.max_aborts,
            list(policy.pacing_s if failure.pacing_s is None else failure.pacing_s),
        )
        assert row is not None  # the function returns one row or raises
        return row

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Whatever fails in the block, the session ends with it, and its transaction."""
        try:
            yield
        except BaseException:
            self.checkout.terminate()
            raise


def record_of(row: asyncpg.Record, read: Callable[[Message, Attempt], Envelope]) -> ExhaustionRecord:
    """Return the record in a row, as handlers see it.

    :param read: makes a message's envelope from its bytes.
    """
    message = Message(
        key=row["key"],
        consumer=row["consumer"],
        source=row["source"],
        message_id=row["message_id"],
        type=row["type"],
        body=row["body"],
        properties=row["properties"],
        exchange=row["exchange"],
        routing_key=row["routing_key"],
        traceparent=row["traceparent"],
    )
    return ExhaustionRecord(
        id=row["id"],
        key=row["key"],
        generation=row["generation"],
        number=row["number"],
        claim_id=row["claim_id"],
        consumer=row["consumer"],
        reason=row["reason"],
        error_class=row["error_class"],
        error_text=row["error_text"],
        exhausted_at=row["exhausted_at"],
        tries=row["tries"],
        envelope=read(message, Attempt(row["number"], row["generation"], row["claim_id"])),
    )


def _said(failure: Failure) -> str:
    if failure.error is None:
        return "the process was stopping"
    if isinstance(failure.error, Reject):
        return harmless(f"rejected: {failure.reason}")
    return safe(f"{error_class(failure.error)}: {error_text(failure.error)}")
