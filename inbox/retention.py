"""Retention: what has ended is remembered for a while, and then removed without getting in anybody's way.

Receipts go by whole partitions: detached concurrently, which waits for running attempts and keeps no claim waiting,
then dropped. A detaching that was interrupted is finished, and a table that was left between both steps is found again
by its name. Rows go in small batches that skip whatever somebody holds. A step that would have to wait for long gives
up, and a later round tries again.

What is older than its horizon is forgotten for good: a copy of a message that comes after that is a new message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from inbox.claiming import describe
from inbox.queries import query
from pools import Pool

log = structlog.get_logger(__name__)

_SAY = query("say_retention")
_FORGET_SAID = query("forget_retention")
_HORIZON = query("receipts_horizon")
_PAST = query("past_partitions")
_PENDING = query("pending_partitions")
_DETACHED = query("detached_partitions")
_LOCK = query("lock_partitions")
_MESSAGES = query("remove_messages")
_EXHAUSTIONS = query("remove_exhaustions")
_HISTORY = query("remove_history")
_REPLAYS = query("remove_replays")
_MEMBERS = query("forget_members")

_OURS = re.compile(r"receipt_(\d{8}_\d{6})")
_BATCH = 500
_BATCHES_PER_ROUND = 20
_FROM_THE_START = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
_WAITED_TOO_LONG = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)
_NOT_SO = frozenset({"55000", "42P01"})
"""SQLSTATEs, and not the classes of the driver, one of which would take in a lock that was not got in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizons:
    """How long what has ended is remembered, in seconds.

    :param receipts_s: of processed messages.
    :param messages_s: messages that ended without effect, and processes that no longer run.
    :param exhaustions_s: exhaustion records, from their acknowledgement on.
    :param history_s: what operators did, of messages that are not on record any more.
    :param replays_s: replay jobs, from their end on.
    """

    receipts_s: float
    messages_s: float
    exhaustions_s: float
    history_s: float
    replays_s: float


class Cleaner:
    """Removes what one service does not want to remember any more.

    :param consumers: the service's, by key name.
    :param removed: told what was removed and how much of it, in words fit for a label.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        service: str,
        consumers: Sequence[str],
        horizons: Horizons,
        removed: Callable[[str, int], None] = lambda what, number: None,
    ) -> None:
        self._pool = pool
        self._service = service
        self._consumers = tuple(consumers)
        self._horizons = horizons
        self._removed = removed
        self._positions: dict[str, tuple[datetime, UUID]] = {}

    async def round(self) -> bool:
        """Do one round. Safe beside any other, also of the same service.

        :return: whether there is more to do at once.
        :raises PoolError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the database does not serve it.
        """
        # Each step by itself, so that one that cannot be taken now holds no other one up.
        steps = (self._receipts, self._messages, self._exhaustions, self._history, self._replays, self._members)
        more = False
        for step in steps:
            try:
                async with self._pool.acquire() as connection:
                    more |= await step(connection)
            except _WAITED_TOO_LONG as error:
                log.info("retention.waits", step=step.__name__.strip("_"), fault=describe(error))
        return more

    async def _receipts(self, connection: asyncpg.Connection[Any]) -> bool:
        await connection.execute(_SAY, self._service, self._horizons.receipts_s)
        await connection.execute(_FORGET_SAID)
        horizon: datetime | None = await connection.fetchval(_HORIZON)
        if horizon is None:  # another round of ours, with less patience, was faster
            return False
        await finish_detaching(connection)
        await self._drop_detached(connection, horizon)
        past = [row["name"] for row in await connection.fetch(_PAST, horizon) if made_at(row["name"]) is not None]
        if not past:
            return False
        if not await detach(connection, past[0]):
            return True
        log.info("receipt.partition_detached", name=past[0])
        await self._drop_detached(connection, horizon)
        return len(past) > 1

    async def _drop_detached(self, connection: asyncpg.Connection[Any], horizon: datetime) -> None:
        names = await drop_detached(connection, before=horizon)
        if names:
            self._tell("receipt_partition", len(names), names=names)

    async def _messages(self, connection: asyncpg.Connection[Any]) -> bool:
        removed, more = 0, False
        for consumer in self._consumers:
            for _ in range(_BATCHES_PER_ROUND):
                position = self._positions.pop(consumer, _FROM_THE_START)
                page = await connection.fetchrow(_MESSAGES, consumer, self._horizons.messages_s, *position, _BATCH)
                assert page is not None  # the function returns one row
                removed += page["removed"]
                if page["seen"] < _BATCH:
                    break
                # What stays is passed by: the next page, or the next round, begins behind it.
                self._positions[consumer] = page["last_at"], page["last_key"]
            more |= consumer in self._positions
        self._tell("message", removed)
        return more

    async def _exhaustions(self, connection: asyncpg.Connection[Any]) -> bool:
        return await self._of_consumers(connection, "exhaustion", _EXHAUSTIONS, self._horizons.exhaustions_s)

    async def _history(self, connection: asyncpg.Connection[Any]) -> bool:
        return await self._of_consumers(connection, "history", _HISTORY, self._horizons.history_s)

    async def _replays(self, connection: asyncpg.Connection[Any]) -> bool:
        return await self._in_batches(connection, "replay", _REPLAYS, self._service, self._horizons.replays_s)

    async def _of_consumers(self, connection: asyncpg.Connection[Any], what: str, sql: str, keep_s: float) -> bool:
        more = False
        for consumer in self._consumers:
            more |= await self._in_batches(connection, what, sql, consumer, keep_s)
        return more

    async def _in_batches(
        self, connection: asyncpg.Connection[Any], what: str, sql: str, owner: str, keep_s: float
    ) -> bool:
        removed, last = 0, _BATCH
        for _ in range(_BATCHES_PER_ROUND):
            last = await connection.fetchval(sql, owner, keep_s, _BATCH)
            removed += last
            if last < _BATCH:
                break
        self._tell(what, removed)
        return last == _BATCH

    async def _members(self, connection: asyncpg.Connection[Any]) -> bool:
        self._tell("member", _number(await connection.execute(_MEMBERS, self._horizons.messages_s)))
        return False

    def _tell(self, what: str, number: int, **facts: object) -> None:
        if number:
            log.info("retention.removed", what=what, number=number, **facts)
            self._removed(what, number)


async def detach(connection: asyncpg.Connection[Any], name: str) -> bool:
    """Detach a partition while claims go on. Outside any transaction.

    :return: False if another one is being detached, or this one has been meanwhile.
    :raises asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError: attempts that began before have not ended in
        time. The partition may be half detached then: see `finish_detaching`.
    """
    try:
        await connection.execute(f"ALTER TABLE inbox.receipt DETACH PARTITION inbox.{_quoted(name)} CONCURRENTLY")
    except asyncpg.PostgresError as error:
        if error.sqlstate not in _NOT_SO:
            raise
        return False
    return True


async def finish_detaching(connection: asyncpg.Connection[Any]) -> list[str]:
    """Finish what was interrupted between the two steps of detaching, and return the names.

    :raises asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError: as for `detach`; to be tried again.
    """
    finished = []
    for row in await connection.fetch(_PENDING):
        name = row["name"]
        try:
            await connection.execute(f"ALTER TABLE inbox.receipt DETACH PARTITION inbox.{_quoted(name)} FINALIZE")
        except asyncpg.PostgresError as error:
            if error.sqlstate not in _NOT_SO:
                raise
            continue  # somebody else has finished it
        log.info("receipt.detaching_finished", name=name)
        finished.append(name)
    return finished


async def drop_detached(connection: asyncpg.Connection[Any], *, before: datetime) -> list[str]:
    """Drop tables that were partitions of receipts, and return their names.

    :param before: only those that begin before it.
    """
    dropped = []
    # Under the lock of whoever makes partitions, which takes a table of such a name for one to attach.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(_LOCK)
        for row in await connection.fetch(_DETACHED):
            made = made_at(row["name"])
            if made is not None and made < before:
                await connection.execute(f"DROP TABLE inbox.{_quoted(row['name'])}")
                dropped.append(row["name"])
    return dropped


def made_at(name: str) -> datetime | None:
    """Return where the partition of that name begins, or None if the fleet did not name it."""
    match = _OURS.fullmatch(name)
    try:
        return None if match is None else datetime.strptime(match[1], "%Y%m%d_%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _number(tag: str) -> int:
    return int(tag.rpartition(" ")[2])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
