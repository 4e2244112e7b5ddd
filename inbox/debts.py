"""Attempts whose session was lost before their outcome was proven: what this process still owes the database.

While a process lives, its attempts without an outcome are undecided, and copies of their messages park. So whoever
loses the session of a counted attempt must settle it, as soon as the lost session has ended on the server: the key's
lock is free then and only then. Until it is settled the attempt counts as present: should the process die meanwhile,
that must not be what another attempt has done to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from uuid import UUID

import asyncpg
import structlog

from inbox.backoff import Backoff
from inbox.claiming import DRIVER_ERRORS, describe
from inbox.queries import query
from pools import Connection, Pool, PoolError

log = structlog.get_logger(__name__)

_SETTLE = query("settle_debt")
_SETTLE_TRY = query("settle_try")
_TIMEOUT_S = 10.0

PRESENT_S = 60.0
"""So long an attempt that is owed counts as present. Others have to work, and one debt might never be paid."""


@dataclass(frozen=True, slots=True)
class Debt:
    """One counted attempt that must become `aborted`, unless it turns out to have committed."""

    key: UUID
    claim_id: UUID
    pacing_s: tuple[float, ...]

    @property
    def id(self) -> UUID:
        """What is owed once."""
        return self.claim_id

    @property
    def names(self) -> dict[str, str]:
        """What a log line calls it."""
        return {"key": str(self.key), "claim_id": str(self.claim_id)}

    async def settle(self, connection: Connection) -> bool:
        """Settle it, unless the lost session still holds the key."""
        settled: bool = await connection.fetchval(
            _SETTLE, self.key, self.claim_id, list(self.pacing_s), timeout=_TIMEOUT_S
        )
        return settled


@dataclass(frozen=True, slots=True)
class TryDebt:
    """One counted try of an exhaustion record that must not be charged, unless it turns out to have acknowledged."""

    record_id: UUID
    try_id: UUID
    max_attempts: int
    max_aborts: int

    @property
    def id(self) -> UUID:
        """What is owed once."""
        return self.try_id

    @property
    def names(self) -> dict[str, str]:
        """What a log line calls it."""
        return {"exhaustion_id": str(self.record_id), "try_id": str(self.try_id)}

    async def settle(self, connection: Connection) -> bool:
        """Settle it, unless the lost session still holds the record."""
        settled: bool = await connection.fetchval(
            _SETTLE_TRY, self.record_id, self.try_id, self.max_attempts, self.max_aborts, timeout=_TIMEOUT_S
        )
        return settled


@dataclass(frozen=True, slots=True)
class _Owed:
    debt: Debt | TryDebt
    leave: Callable[[], None]
    since_s: float


class Debts:
    """The debts of one process and the task that settles them.

    :param pool: where the settling statements run; not a consumer's pool, whose lanes may all be busy.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._open: dict[UUID, _Owed] = {}
        self._added = asyncio.Event()

    @property
    def count(self) -> int:
        """How many attempts and tries are owed."""
        return len(self._open)

    def add(self, debt: Debt | TryDebt, leave: Callable[[], None] = lambda: None) -> None:
        """Owe an attempt or a try from now on.

        :param leave: called when it is settled: it is present until then, or for `PRESENT_S`.
        """
        if debt.id in self._open:
            leave()
            return
        self._open[debt.id] = _Owed(debt, leave, monotonic())
        self._added.set()

    async def run(self) -> None:
        """Settle debts until cancelled; what cannot be settled yet is tried again after growing, jittered pauses."""
        pauses = Backoff(first_s=0.1, longest_s=5.0)
        while True:
            if not self._open:
                self._added.clear()
                await self._added.wait()
            if await self.settle():
                pauses.reset()
            else:
                await asyncio.sleep(pauses.next_s())

    async def settle(self) -> bool:
        """Try every debt once, up to an error that says nothing about the debt. Return whether none is left."""
        for owed in tuple(self._open.values()):
            debt = owed.debt
            if monotonic() - owed.since_s > PRESENT_S:
                owed.leave()
            try:
                async with self._pool.acquire() as connection:
                    try:
                        settled = await debt.settle(connection)
                    except asyncpg.PostgresError as error:
                        if connection.is_closed():
                            raise
                        self._postpone(owed, error)  # the server's answer to this one; another one may fare better
                        continue
            except (*DRIVER_ERRORS, PoolError) as error:
                self._postpone(owed, error)
                return False
            if settled:
                # It may be settled already: the stop settles too, beside the task that always does.
                self._open.pop(debt.id, None)
                owed.leave()
                log.info("debt.settled", **debt.names)
        return not self._open

    def _postpone(self, owed: _Owed, error: BaseException) -> None:
        debt = owed.debt
        log.warning("debt.unsettled", **debt.names, fault=describe(error))
        # Behind the others, so that one which breaks every connection does not keep them waiting for ever.
        if self._open.pop(debt.id, None) is not None:
            self._open[debt.id] = owed
