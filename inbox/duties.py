"""Duties: work that one process of a service does for all of them, such as republishing, sweeping and cleaning.

A duty is held for a while, in database time, and renewed before each round. Who loses the database loses the duty, and
another process takes it when that time is up, or when the holder has no heartbeat any more. For a moment two may
believe that they hold it; so whatever a round does is safe if two do it, and holding a duty only saves work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

import structlog

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.queries import query
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_HOLD = query("hold_duty")
_LET_GO = query("let_go_of_duty")
_TIMEOUT_S = 5.0
_LET_GO_TIMEOUT_S = 1.0
_ROUNDS_HELD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """One duty of one service, as one process sees it.

    :param member_id: this process start.
    :param every_s: seconds between two rounds, and between two tries to get it.
    :param round_timeout_s: how long one round may take; the duty is held for longer than that.
    """

    pool: Pool
    service: str
    name: str
    member_id: UUID
    every_s: float
    round_timeout_s: float = 60.0

    async def run(self, work: Callable[[], Awaitable[bool]]) -> None:
        """Do rounds of work whenever this process holds the duty, until cancelled.

        A round that fails for want of a server, or that takes too long, is logged, and the next one comes in its time.

        :param work: one round; returns whether there is more to do at once.
        """
        try:
            while True:
                if not await self._round(work):
                    await asyncio.sleep(self.every_s)
        finally:
            await self._let_go()

    async def hold(self) -> bool:
        """Take the duty or keep it. Return whether this process holds it now.

        :raises PoolError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the database does not answer.
        """
        held_s = self.round_timeout_s + _ROUNDS_HELD * self.every_s
        async with self.pool.acquire() as connection:
            held_until = await connection.fetchval(
                _HOLD, self.service, self.name, self.member_id, held_s, timeout=_TIMEOUT_S
            )
        return held_until is not None

    async def _round(self, work: Callable[[], Awaitable[bool]]) -> bool:
        try:
            if not await self.hold():
                return False
            async with asyncio.timeout(self.round_timeout_s):
                return await work()
        except (*DRIVER_ERRORS, PoolError) as error:
            log.warning("duty.round_failed", duty=self.name, fault=describe(error))
            return False

    async def _let_go(self) -> None:
        try:
            async with asyncio.timeout(_LET_GO_TIMEOUT_S), self.pool.acquire() as connection:
                await connection.execute(_LET_GO, self.service, self.name, self.member_id)
        except (*DRIVER_ERRORS, PoolError) as error:
            # It runs out by itself.
            log.info("duty.not_let_go", duty=self.name, fault=describe(error))
