"""The inbox as a consumer drives it, without a broker: processes, messages, scripted handlers, and what the rows say.

A `Process` is one process start: a member with its heartbeat on record, a company, debts, a pool for its lanes and one
for its housekeeping. Two of them on one database are two members of a fleet. Nothing runs in the background: a test
settles debts and lets heartbeats expire when it wants to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from inbox import Attempt, Company, Debts, Inbox, Member, Message, Outcome, Policy, Tx, message_key
from inbox.outcomes import Contended, Ended, Processed
from inbox.oversize import Keep
from inbox.states import State
from pools import Pool, PoolSpec, SessionSettings
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.ledger import INSERT

Step = Callable[[Attempt, Tx], Awaitable[None]]

NO_PAUSE = Policy(max_attempts=3, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=10.0)
"""Three attempts without pauses, so that a test is not paced."""


HOT_AND_COUNTED = pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
"""Both paths of an attempt: a first delivery, and one that is counted before it runs."""


def message(message_id: str = "m-1", **differences: Any) -> Message:
    """Return a message; every field may be given."""
    fields: dict[str, Any] = {
        "consumer": "billing",
        "source": "/shop",
        "message_id": message_id,
        "type": "order.placed",
        "body": b'{"order": 1}',
        "properties": b"\x00\x00",
        "exchange": "shop",
        "routing_key": "order.placed",
    } | differences
    if "key" not in fields:
        fields["key"] = message_key(fields["consumer"], fields["source"], fields["message_id"])
    return Message(**fields)


class Handler:
    """A handler that writes one effect and then plays a step of its script: one for each call, the last one repeats.

    A step is an exception, which is raised, or a function of attempt and tx. No step: it writes and returns.
    """

    def __init__(self, *steps: Step | BaseException, message_id: str = "m-1", writes: bool = True) -> None:
        self._steps = steps
        self._message_id = message_id
        self._writes = writes
        self.calls: list[Attempt] = []

    async def __call__(self, attempt: Attempt, tx: Tx) -> None:
        self.calls.append(attempt)
        if self._writes:
            await tx.execute(INSERT, self._message_id, attempt.number, "handler")
        if not self._steps:
            return
        step = self._steps[min(len(self.calls), len(self._steps)) - 1]
        if isinstance(step, BaseException):
            raise step
        await step(attempt, tx)


async def succeed(attempt: Attempt, tx: Tx) -> None:
    """The step of a handler that is done."""


@dataclass(slots=True)
class Process:
    """One process start. `attempt` is what a lane does with one delivery."""

    database: Database
    pool: Pool
    housekeeping: Pool
    member: Member
    company: Company
    debts: Debts
    inbox: Inbox

    async def attempt(
        self,
        message: Message,
        handler: Step,
        policy: Policy = NO_PAUSE,
        *,
        redelivered: bool = False,
        keep: Keep | None = None,
    ) -> Outcome:
        """Try a message once."""
        return await self.inbox.attempt(message, policy, handler, redelivered=redelivered, keep=keep)

    @property
    def application_name(self) -> str:
        """How the sessions of its lanes show in `pg_stat_activity`."""
        return self.pool.spec.application_name

    async def end_sessions(self) -> None:
        """End the sessions of its lanes on the server, and wait until they are gone."""
        await self.database.terminate_sessions(self.application_name)

        async def gone() -> bool:
            return not await self.database.sessions(self.application_name)

        await eventually(gone, what="the end of a process's sessions")

    async def vanish(self) -> None:
        """Die on paper: its sessions end and its heartbeat is too old, as after a SIGKILL."""
        await self.end_sessions()
        await self.database.execute(
            "update inbox.member set heartbeat_at = heartbeat_at - 2 * expiry where id = $1", self.member.id
        )

    async def pay(self) -> None:
        """Settle its debts, as soon as the server lets the keys of lost sessions go."""
        await eventually(self.debts.settle, what="the settling of debts")


class StartProcess(Protocol):
    """What the fixture `process` gives: makes one process start."""

    async def __call__(self, name: str = "lanes", **differences: Any) -> Process: ...


@asynccontextmanager
async def process_on(
    database: Database,
    name: str,
    *,
    url: str | None = None,
    lanes: int = 4,
    nested: int = 0,
    session: SessionSettings | None = None,
    **spec: Any,
) -> AsyncIterator[Process]:
    """Make a process start on a database, its lanes perhaps through a relay's `url`; close it at the end."""
    session = session or SessionSettings.for_handlers(NO_PAUSE.handler_timeout_s)
    pool = Pool(
        url or database.url,
        PoolSpec(name=name, application_name=name, lanes=lanes, nested=nested, session=session, **spec),
    )
    housekeeping = Pool(
        database.url,
        PoolSpec(name=f"{name}-housekeeping", application_name=f"{name}-housekeeping", headroom=2, session=session),
    )
    member = Member(service="test")
    company = Company()
    debts = Debts(housekeeping)
    try:
        await pool.open()
        await housekeeping.open()
        await member.register(housekeeping)
        # Long enough ago to judge others, as after some time of work.
        await database.execute(
            "update inbox.member set steady_since = steady_since - 2 * expiry where id = $1", member.id
        )
        yield Process(
            database=database,
            pool=pool,
            housekeeping=housekeeping,
            member=member,
            company=company,
            debts=debts,
            inbox=Inbox(pool=pool, member_id=member.id, company=company, debts=debts),
        )
    finally:
        await pool.close(1.0)
        await housekeeping.close(1.0)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is durable about one message.

    `attempts` are (outcome, charged) in their order.
    """

    receipts: int
    effects: int
    state: str | None = None
    attempts: tuple[tuple[str, bool], ...] = ()
    reason: str | None = None
    errors: tuple[str | None, ...] = field(default=(), compare=False)


async def standing(database: Database, message: Message) -> Standing:
    """Read what is durable about a message."""
    row = await database.fetchrow("select state, reason from inbox.message where key = $1", message.key)
    attempts = await database.fetch(
        "select outcome, charged, error_class from inbox.attempt where key = $1 order by generation, number",
        message.key,
    )
    return Standing(
        receipts=await database.fetchval("select count(*) from inbox.receipt where key = $1", message.key),
        effects=await database.fetchval("select count(*) from ledger where message_id = $1", message.message_id),
        state=None if row is None else row["state"],
        attempts=tuple((attempt["outcome"], attempt["charged"]) for attempt in attempts),
        reason=None if row is None else row["reason"],
        errors=tuple(attempt["error_class"] for attempt in attempts),
    )


def ended(outcome: Outcome) -> tuple[State, int, str]:
    """Return state, number of attempts and reason of an outcome that has ended its message."""
    assert isinstance(outcome, Ended), outcome
    return outcome.state, outcome.number, outcome.reason


PROCESSED = Standing(receipts=1, effects=1)
"""Processed: a receipt, one effect, no row."""


async def assert_charged(database: Database, error: str, *, effects: int = 0, outcome: str = "failed") -> None:
    """Assert that the message waits after one charged attempt with this error, unstamped."""
    found = await standing(database, message())
    assert found == Standing(receipts=0, effects=effects, state="waiting", attempts=((outcome, True),))
    assert found.errors == (error,)


async def done_next_time(one: Process) -> None:
    """Assert that the message is processed by its next copy, in its second attempt."""
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)


async def processed_in_the_end(one: Process, message: Message) -> Outcome:
    """Deliver copies until one is not contended by a session that still is about to end; return that one's outcome."""

    async def settled() -> Outcome | None:
        outcome = await one.attempt(message, Handler(message_id=message.message_id), redelivered=True)
        return None if isinstance(outcome, Contended) else outcome

    found = await eventually(settled, what="the end of a lost session")
    assert found is not None
    return found


async def key_is_locked(database: Database, message: Message) -> bool:
    """Return whether some session holds the lock of a message's key."""
    # Tried and given back by a session of the test, which holds nothing else.
    taken = await database.fetchval("select pg_try_advisory_lock(inbox.lock_id($1))", message.key)
    if taken:
        await database.execute("select pg_advisory_unlock(inbox.lock_id($1))", message.key)
    return not taken


async def at_rest(database: Database) -> None:
    """Wait until no session of the database holds an advisory lock or an open transaction."""

    async def nothing_is_left() -> None:
        locks = await database.fetch(
            "select l.pid, a.application_name from pg_locks l left join pg_stat_activity a using (pid) "
            "where l.locktype = 'advisory' and l.database = "
            "(select oid from pg_database where datname = current_database())"
        )
        assert not locks, f"advisory locks are left: {locks}"
        open_transactions = await database.fetch(
            "select application_name, state, query from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and xact_start is not null and backend_type = 'client backend'"
        )
        assert not open_transactions, f"open transactions are left: {open_transactions}"

    async def holds() -> bool:
        await nothing_is_left()
        return True

    await eventually(holds, what="a database at rest")
