"""An open claim: the key's lock, the session that holds it, and the one place that sends COMMIT.

Every statement here is the fleet's own. Its errors are translated once, into `StatementFailed` or `CommitUnknown`,
with what they mean for the attempt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import UUID

import asyncpg

from inbox import statements
from inbox.envelope import Attempt, Message
from inbox.errors import AttemptLost, InvalidTransition
from inbox.faults import AttemptLostError, Fault, in_machine
from inbox.points import armed, reach
from inbox.policy import Policy
from inbox.queries import query
from inbox.states import EVENTS, AttemptOutcome, State, next_state
from pools import Checkout, Pool

STATEMENT_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 30.0

_START = query("start_attempt")
_RECORD = query("record_outcome")
_LET_GO = query("let_go")

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""Everything that a statement of ours can raise but cancellation."""


class StatementFailed(Exception):
    """A statement of the fleet's own failed; `fault` says what that means, `__cause__` is the driver's error."""

    def __init__(self, fault: Fault, error: BaseException) -> None:
        self.fault, self.error = fault, error
        super().__init__(describe(error))


class CommitUnknown(Exception):
    """COMMIT was sent and its answer never came."""


def describe(error: BaseException) -> str:
    """Return an error's class and SQLSTATE, to name it by. Never its text, which may quote data."""
    sqlstate = getattr(error, "sqlstate", None)
    name = type(error).__name__
    return f"{name} ({sqlstate})" if isinstance(sqlstate, str) else name


@dataclass(frozen=True, slots=True)
class Recorded:
    """What followed from an attempt without effects."""

    state: State
    number: int
    delay_s: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """The counted path's verdict."""

    verdict: str
    number: int
    generation: int
    remaining_s: float
    state: str


@dataclass(slots=True)
class Claim:
    """One message, claimed by one attempt on one session."""

    message: Message
    policy: Policy
    member_id: UUID
    checkout: Checkout
    attempt: Attempt
    counted: bool
    alone: bool
    opened_at: float = field(default_factory=monotonic)
    may_be_started: bool = False
    """A counted start was sent, and nothing says that it is not on record: lost now, the attempt is owed."""

    @property
    def connection(self) -> asyncpg.Connection[Any]:
        """The session."""
        return self.checkout.connection

    @property
    def closed(self) -> bool:
        """Whether the session is gone."""
        return self.connection.is_closed()

    async def call(self, sql: str) -> str:
        """Run one simple-protocol call and return its last tag.

        :raises StatementFailed: it failed.
        """
        return await simple(self.connection, sql)

    async def start(self, *, may_begin: bool) -> Started:
        """Ask for the counted path's verdict, which commits the start if it is `run`.

        :param may_begin: whether a message that is not on record may be put there.
        """
        policy, message = self.policy, self.message
        self.may_be_started = True
        row = await self.fetchrow(
            _START,
            message.key,
            self.attempt.claim_id,
            self.member_id,
            self.alone,
            may_begin,
            *message.stored(),
            policy.max_attempts,
            policy.max_aborts,
            list(policy.pacing_s),
            EARLY_TOLERANCE_S,
        )
        self.may_be_started = row["verdict"] == "run"
        return Started(row["verdict"], row["number"], row["generation"], row["remaining_s"], row["state"])

    async def record(
        self,
        outcome: AttemptOutcome,
        *,
        error_class: str | None = None,
        error_text: str | None = None,
        error_trace: str | None = None,
        reason: str | None = None,
        after_s: float | None = None,
        pacing_s: tuple[float, ...] | None = None,
    ) -> Recorded:
        """Write how the attempt ended without effects; the caller commits.

        :raises AttemptLost: somebody else has settled it.
        :raises StatementFailed: it failed.
        """
        policy, message = self.policy, self.message
        row = await self.fetchrow(
            _RECORD,
            message.key,
            self.attempt.claim_id,
            self.member_id,
            self.alone,
            not self.counted,
            *message.stored(),
            monotonic() - self.opened_at,
            outcome.value,
            error_class,
            error_text,
            error_trace,
            reason,
            after_s,
            policy.max_attempts,
            policy.max_aborts,
            list(policy.pacing_s if pacing_s is None else pacing_s),
        )
        state = State(row["state"])
        before = State.ATTEMPTING if self.counted else State.NEW
        if state not in {next_state(before, event) for event in EVENTS[outcome]}:
            raise InvalidTransition(state=before.value, event=f"{outcome} → {state.value}")
        return Recorded(state, row["number"], row["delay_s"], row["reason"])

    async def commit(self, sql: str, *, sent: str, answered: str) -> None:
        """Send a call that ends with COMMIT; see `send_commit`.

        :raises AttemptLost: somebody else has settled the attempt: nothing was committed.
        :raises StatementFailed, CommitUnknown: as there.
        """
        try:
            await send_commit(self.connection, sql, sent=sent, answered=answered)
        except AttemptLostError as error:
            raise self._lost() from error

    async def close(self) -> None:
        """End an attempt whose outcome is settled: give back the lock and the session."""
        if self.counted:
            try:
                held = await self.connection.fetchval(_LET_GO, self.message.key, timeout=STATEMENT_TIMEOUT_S)
            except DRIVER_ERRORS:
                held = False
            if not held:
                self.checkout.terminate()  # the lock ends with its session
        await self.checkout.release()

    async def fetchrow(self, sql: str, *arguments: object) -> asyncpg.Record:
        """Run a statement that returns one row, or raises.

        :raises AttemptLost: somebody else has settled the attempt.
        :raises StatementFailed: it failed.
        """
        try:
            row: asyncpg.Record | None = await self.connection.fetchrow(sql, *arguments, timeout=STATEMENT_TIMEOUT_S)
        except AttemptLostError as error:
            raise self._lost() from error
        except DRIVER_ERRORS as error:
            raise StatementFailed(in_machine(error, closed=self.closed), error) from error
        assert row is not None  # these functions return one row or raise
        return row

    def _lost(self) -> AttemptLost:
        return AttemptLost(key=self.message.key, claim_id=self.attempt.claim_id)


EARLY_TOLERANCE_S = 0.05
"""Parking queues return copies up to a few milliseconds early; those are not parked for a whole further step."""


async def open_session(pool: Pool, sql: str) -> tuple[Checkout, str]:
    """Get a session and send a claim's first call; once more on another, since one that died idle shows here.

    :raises StatementFailed: no session could be opened, or the call failed.
    :raises PoolError: none became free in time.
    """
    for last in (False, True):
        try:
            checkout = await pool.checkout(folds_reset=True)
        except DRIVER_ERRORS as error:
            raise StatementFailed(in_machine(error, closed=False), error) from error
        try:
            return checkout, await simple(checkout.connection, sql)
        except StatementFailed as error:
            checkout.terminate()
            if last or error.fault is not Fault.SESSION_LOST:
                raise
        except BaseException:
            checkout.terminate()
            raise
    raise AssertionError("unreachable")


async def simple(connection: asyncpg.Connection[Any], sql: str) -> str:
    """Run one simple-protocol call of ours and return its last tag.

    :raises StatementFailed: it failed.
    """
    try:
        return str(await connection.execute(sql, timeout=STATEMENT_TIMEOUT_S))
    except DRIVER_ERRORS as error:
        raise StatementFailed(in_machine(error, closed=connection.is_closed()), error) from error


async def send_commit(connection: asyncpg.Connection[Any], sql: str, *, sent: str, answered: str) -> None:
    """Send a call that ends with COMMIT, in a task of its own that nobody cancels, and read its tag.

    :param sent: the point reached when the call is on its way.
    :param answered: the point reached when its tag has come.
    :raises AttemptLostError: a guarded write in it matched no row: nothing was committed.
    :raises StatementFailed: the server refused it, and the session lives: nothing was committed.
    :raises CommitUnknown: the session was lost, or no answer came in time.
    """
    task = asyncio.create_task(connection.execute(sql, timeout=COMMIT_TIMEOUT_S))
    if armed():
        await asyncio.sleep(0)  # the call is written in the task's first step
        reach(sent)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        # A cancelled COMMIT has usually committed, but its caller would never know: see it through, then go.
        await asyncio.wait((task,), timeout=COMMIT_TIMEOUT_S)
        raise
    error = task.exception()
    if isinstance(error, AttemptLostError):
        raise error
    if error is not None:
        if isinstance(error, asyncpg.PostgresError) and not connection.is_closed() and not _is_connection_error(error):
            raise StatementFailed(in_machine(error, closed=False), error) from error
        raise CommitUnknown(describe(error)) from error
    tag = task.result()
    if tag != statements.COMMIT:
        raise CommitUnknown(f"COMMIT was answered by {tag}")
    reach(answered)


def _is_connection_error(error: BaseException) -> bool:
    sqlstate = getattr(error, "sqlstate", "") or ""
    return sqlstate.startswith("08") or sqlstate in ("57P01", "57P02", "57P03")
