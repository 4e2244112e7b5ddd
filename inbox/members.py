"""Process starts and their heartbeats.

Every process start is a member with an id of its own. While its heartbeat is younger than its expiry, in database
time, its undecided attempts are nobody else's to judge. And nobody judges who has not sent heartbeats without a gap for
as long as that: an outage of the database keeps everybody's away.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from uuid import UUID

import structlog
import uuid_utils.compat

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.queries import query
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_REGISTER = query("register_member")
_BEAT = query("beat")
_STOP = query("stop_member")
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process start.

    :param heartbeat_s: seconds between two heartbeats.
    :param expiry_s: how old a heartbeat may be until the process counts as dead: several heartbeats, or a short outage
        kills it on paper.
    """

    service: str
    heartbeat_s: float = 5.0
    expiry_s: float = 30.0
    id: UUID = field(default_factory=uuid_utils.compat.uuid7)

    async def register(self, pool: Pool) -> None:
        """Make this process known. Must be committed before its first counted attempt."""
        async with pool.acquire() as connection:
            await connection.execute(
                _REGISTER,
                self.id,
                self.service,
                build(),
                socket.gethostname(),
                os.getpid(),
                self.expiry_s,
                timeout=_TIMEOUT_S,
            )

    async def beat(self, pool: Pool, *, paused: Callable[[], Iterable[str]] = tuple) -> None:
        """Send heartbeats until cancelled. A beat that fails is logged and the next one is sent in its time.

        :param paused: returns the consumers, by key name, whose deliveries this process holds without working on them.
        """
        while True:
            await asyncio.sleep(self.heartbeat_s)
            try:
                async with pool.acquire() as connection:
                    known = await connection.fetchval(_BEAT, self.id, list(paused()), timeout=_TIMEOUT_S)
                if known is None:
                    await self.register(pool)
            except (*DRIVER_ERRORS, PoolError) as error:
                log.warning("member.beat_failed", member_id=str(self.id), fault=describe(error))

    async def stop(self, pool: Pool) -> None:
        """Say that this process ends in order: what it leaves undecided was given up, not died with."""
        async with pool.acquire() as connection:
            await connection.fetchval(_STOP, self.id, timeout=_TIMEOUT_S)


def build() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("inbox-fleet")
    except PackageNotFoundError:
        return "unknown"
