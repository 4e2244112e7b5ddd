"""The sweep: attempts that no copy comes to judge, and messages whose copy the broker has lost.

An attempt whose process is gone is judged without waiting for a copy: its message waits by its pacing then, or is
exhausted. A message that waits, and is past its time by more than anything that can hold its copy up, is given another
copy; but not while the old one may be somewhere, in a backlog or in the hands of a paused process. Which messages a
queue holds cannot be seen. So the consumer's queues must have been seen empty again and again, for longer than a copy
can be out of sight. Queues that are never seen empty would keep a lost message waiting for ever; so after a long time
it gets its copy all the same. One that was not needed is absorbed.

Everything here is safe beside another sweep: messages are changed one by one, under their lock, and only if they are as
they were found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from inbox.claiming import describe
from inbox.points import reach
from inbox.policy import Policy
from inbox.queries import query
from pools import Pool

log = structlog.get_logger(__name__)

_LOOK = query("look_at_consumer")
_OWNERLESS = query("find_ownerless")
_JUDGE = query("judge_ownerless")
_STRANDED = query("find_stranded")
_MARK = query("mark_stranded")

_TIMEOUT_S = 10.0
_PAGE = 100
_PAGES_PER_ROUND = 20
_LEAST_LOOKS = 3
_BEFORE_ALL = UUID(int=0)
_FROM_THE_START = (datetime.min.replace(tzinfo=UTC), _BEFORE_ALL)
_MOVED = frozenset({"waiting", "exhausted", "copy_needed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A consumer, as the sweep has to know it.

    :param consumer: its key name.
    :param policy_for: returns the policy of a message type.
    :param slack_s: how long past its time a message is left alone at least.
    :param quiet_s: for how long its queues must have been seen empty: longer than a copy can be out of sight.
    :param at_latest_s: how long past its time a message gets its copy whatever is seen.
    """

    consumer: str
    policy_for: Callable[[str], Policy]
    slack_s: float
    quiet_s: float
    at_latest_s: float


class Quiet:
    """Since when a consumer's queues have been seen empty each time, without a gap in which they were not looked at.

    :param longest_gap_s: between two looks.
    """

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._since: datetime | None = None
        self._looks = 0
        self._looked_at = 0.0

    def seen(self, empty: bool, *, now: datetime, at: float) -> None:
        """They were looked at.

        :param now: in database time.
        :param at: on this process's clock.
        """
        if at - self._looked_at > self._longest_gap_s:
            self._since = None
        self._looked_at = at
        if not empty:
            self._since = None
        elif self._since is None:
            self._since, self._looks = now, 1
        else:
            self._looks += 1

    def lasts(self, quiet_s: float, *, now: datetime) -> bool:
        """Whether that has been so for so long, and was seen several times."""
        if self._since is None or self._looks < _LEAST_LOOKS:
            return False
        return (now - self._since).total_seconds() >= quiet_s


class Sweeper:
    """Sweeps for the consumers of one service.

    :param member_id: this process start, which judges others.
    :param seen_empty: returns whether all queues of a consumer were just seen empty; must not raise because of the
        broker.
    :param longest_gap_s: between two rounds, or what was seen before counts no more.
    :param swept: told of each message that was changed: the consumer, and "waiting" or "exhausted" for one whose
        attempt was judged, "copy_needed" for one that gets another copy.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        service: str,
        member_id: UUID,
        consumers: Sequence[Swept],
        seen_empty: Callable[[str], Awaitable[bool]],
        longest_gap_s: float,
        swept: Callable[[str, str], None] = lambda consumer, outcome: None,
    ) -> None:
        self._pool = pool
        self._service = service
        self._member_id = member_id
        self._consumers = tuple(consumers)
        self._seen_empty = seen_empty
        self._swept = swept
        self._quiet = {each.consumer: Quiet(longest_gap_s) for each in consumers}

    async def round(self) -> bool:
        """Do one round.

        :return: whether there is more to do at once.
        :raises PoolError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the database does not serve it.
        """
        more = False
        for each in self._consumers:
            more |= await self._judge(each)
            more |= await self._mark(each, each.slack_s if await self._is_quiet(each) else each.at_latest_s)
        return more

    async def _is_quiet(self, swept: Swept) -> bool:
        async with self._pool.acquire() as connection:
            found = await connection.fetchrow(_LOOK, self._service, swept.consumer, timeout=_TIMEOUT_S)
        assert found is not None  # it returns one row
        quiet = self._quiet[swept.consumer]
        empty = not found["paused"] and await self._seen_empty(swept.consumer)
        quiet.seen(empty, now=found["now"], at=monotonic())
        return quiet.lasts(swept.quiet_s, now=found["now"])

    async def _judge(self, swept: Swept) -> bool:
        """Judge attempts whose process is gone."""
        moved, after = 0, _BEFORE_ALL
        for _ in range(_PAGES_PER_ROUND):
            async with self._pool.acquire() as connection:
                page = await connection.fetch(
                    _OWNERLESS, swept.consumer, self._member_id, after, _PAGE, timeout=_TIMEOUT_S
                )
                for row in page:
                    policy = swept.policy_for(row["type"])
                    arguments = (policy.max_attempts, policy.max_aborts, list(policy.pacing_s))
                    found = await self._moved(
                        connection, swept, _JUDGE, row["key"], row["claim_id"], self._member_id, *arguments
                    )
                    if found is not None:
                        log.info(
                            "sweep.judged", **_named(swept, row), outcome=found["verdict"], attempt=found["number"]
                        )
                        moved += 1
                        reach("sweep.judged")
            if len(page) < _PAGE:
                return False
            after = page[-1]["key"]
        return moved > 0

    async def _mark(self, swept: Swept, wait_s: float) -> bool:
        """Ask for a copy of messages that have waited in vain for so long."""
        moved, after = 0, _FROM_THE_START
        for _ in range(_PAGES_PER_ROUND):
            async with self._pool.acquire() as connection:
                page = await connection.fetch(_STRANDED, swept.consumer, wait_s, *after, _PAGE, timeout=_TIMEOUT_S)
                for row in page:
                    found = await self._moved(connection, swept, _MARK, row["key"], row["generation"], wait_s)
                    if found is not None:
                        log.info("sweep.marked", **_named(swept, row), due_at=row["due_at"].isoformat())
                        moved += 1
                        reach("sweep.marked")
            if len(page) < _PAGE:
                return False
            after = page[-1]["due_at"], page[-1]["key"]
        return moved > 0

    async def _moved(
        self, connection: asyncpg.Connection[Any], swept: Swept, sql: str, key: UUID, *arguments: object
    ) -> asyncpg.Record | None:
        """Try to move one message on, and return what became of it; None: nothing did.

        An error that the server answers is this message's own, and holds up no other one.
        """
        try:
            found: asyncpg.Record | None = await connection.fetchrow(sql, key, *arguments, timeout=_TIMEOUT_S)
        except asyncpg.PostgresError as error:
            if connection.is_closed():
                raise
            log.warning("sweep.failed", consumer=swept.consumer, key=str(key), fault=describe(error))
            return None
        assert found is not None  # the functions return one row
        if found["verdict"] not in _MOVED:
            return None
        self._swept(swept.consumer, found["verdict"])
        return found


def _named(swept: Swept, row: asyncpg.Record) -> dict[str, str]:
    return {"consumer": swept.consumer, "message_id": row["message_id"], "key": str(row["key"])}
