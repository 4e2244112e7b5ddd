"""Replay jobs: messages that have ended get a fresh budget, one by one, and who wanted that and why is on record.

The items of a job are frozen when it is made. `inbox.replay_job` runs one; whoever does may die at any point, and
whoever resumes it goes on with what is pending. A replayed message waits in its next generation, and a copy of it is
owed to its queue: the fleet's republisher brings it there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

import asyncpg
import uuid_utils.compat

from inbox.errors import ReplayMissing, ReplayOver
from inbox.messages import REPLAYABLE, Filter, operator
from inbox.points import reach
from inbox.queries import query

_FREEZE = query("freeze_replay")
_FIND = query("find_replays")
_ITEMS = query("replay_items")
_CANCEL = query("cancel_replay")
_CHANGE = query("change_replay")
_TIMEOUT_S = 120.0


class ReplayState(str, Enum):
    """Where a job stands. One that is `RUNNING` without anybody who runs it was interrupted, and can be resumed."""

    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """True once nothing of the job is replayed any more."""
        return self in (ReplayState.FINISHED, ReplayState.CANCELLED)


class ItemOutcome(str, Enum):
    """What became of one item."""

    PENDING = "pending"
    REPLAYED = "replayed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A job and how far it is.

    :param chosen_by: what its items were chosen by.
    :param rate: messages a second at most; None: as fast as it goes.
    :param stop_ratio: it stops when more than this share of its messages has failed again.
    :param runner: who runs it, or ran it last.
    :param is_run: somebody does now.
    :param skipped: items whose message had not ended any more.
    :param failed: items that the database refused.
    :param processed: replayed messages that have been processed since.
    :param failed_again: replayed messages of which an attempt has failed since.
    """

    id: UUID
    service: str
    reason: str
    by_whom: str
    chosen_by: Mapping[str, Any]
    rate: float | None
    stop_ratio: float | None
    state: ReplayState
    runner: str | None
    is_run: bool
    cancelled_by: str | None
    created_at: datetime
    finished_at: datetime | None
    total: int
    pending: int
    replayed: int
    skipped: int
    failed: int
    processed: int
    failed_again: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayItem:
    """One message of a job.

    :param generation: the one that is replayed.
    :param detail: why it was not replayed.
    :param fate: of a replayed message: "processed", "failed", or None while it is not known.
    """

    position: int
    key: UUID
    generation: int
    consumer: str
    message_id: str
    outcome: ItemOutcome
    detail: str | None
    fate: str | None
    at: datetime | None


async def freeze(
    connection: asyncpg.Connection[Any],
    chosen: Filter,
    *,
    service: str,
    reason: str,
    by_whom: str,
    limit: int | None = None,
    rate: float | None = None,
    stop_ratio: float | None = None,
) -> Replay | None:
    """Make a job of the messages that a filter means now and that can be replayed. None if there is none of them.

    :param service: whose job it is.
    :param reason: why they are replayed.
    :param by_whom: who wants it.
    :param limit: how many at most, the one whose last change is oldest first.
    :param rate: messages a second at most.
    :param stop_ratio: stop when more than this share has failed again, from 0 to below 1. Ten are assumed at least.
    :raises ValueError: an argument is not one of these.
    """
    by_whom, reason = operator(by_whom, reason)
    _check_pace(rate, stop_ratio)
    wanted = replace(chosen, states=(REPLAYABLE if chosen.states is None else chosen.states) & REPLAYABLE)
    replay_id = uuid_utils.compat.uuid7()
    chosen_by = json.dumps({**wanted.described(), **({} if limit is None else {"limit": limit})})
    transaction = connection.transaction()
    await transaction.start()
    try:
        tag = await connection.execute(
            _FREEZE,
            replay_id,
            service,
            reason,
            by_whom,
            chosen_by,
            rate,
            stop_ratio,
            *wanted.arguments(),
            limit,
            timeout=_TIMEOUT_S,
        )
    except BaseException:
        await transaction.rollback()
        raise
    if tag == "INSERT 0 0":
        await transaction.rollback()
        return None
    await transaction.commit()
    reach("replay.frozen")
    return await get(connection, replay_id)


async def get(connection: asyncpg.Connection[Any], replay_id: UUID) -> Replay:
    """Return one job.

    :raises ReplayMissing: there is none of that id.
    """
    rows = await connection.fetch(_FIND, replay_id, None, 1, timeout=_TIMEOUT_S)
    if not rows:
        raise ReplayMissing(replay_id=replay_id)
    return _replay(rows[0])


async def find(connection: asyncpg.Connection[Any], *, service: str | None = None, limit: int = 20) -> list[Replay]:
    """Return jobs, the newest first.

    :param service: of this service only.
    :param limit: how many at most.
    """
    return [_replay(row) for row in await connection.fetch(_FIND, None, service, limit, timeout=_TIMEOUT_S)]


async def items(
    connection: asyncpg.Connection[Any],
    replay_id: UUID,
    *,
    outcomes: Collection[ItemOutcome] | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[ReplayItem]:
    """Return items of a job in their order.

    :param outcomes: with one of these outcomes only.
    :param after: those behind this position.
    """
    wanted = None if outcomes is None else [outcome.value for outcome in outcomes]
    rows = await connection.fetch(_ITEMS, replay_id, after, wanted, limit, timeout=_TIMEOUT_S)
    return [ReplayItem(**{**row, "outcome": ItemOutcome(row["outcome"])}) for row in rows]


async def cancel(connection: asyncpg.Connection[Any], replay_id: UUID, *, by_whom: str) -> Replay:
    """Cancel a job for good. When this returns, nothing of it is replayed any more.

    What it has replayed stays replayed; whoever runs it notices within a second.

    :raises ReplayMissing: there is none of that id.
    :raises ReplayOver: it was over before.
    """
    by_whom, _ = operator(by_whom, "cancelled")
    done = await connection.fetchval(_CANCEL, replay_id, by_whom, timeout=_TIMEOUT_S)
    replay = await get(connection, replay_id)
    if done is None:
        raise ReplayOver(replay_id=replay_id, state=replay.state.value)
    return replay


async def change(
    connection: asyncpg.Connection[Any], replay_id: UUID, *, rate: float | None = None, stop_ratio: float | None = None
) -> Replay:
    """Give a job that is not over another pace or another bound; None leaves each as it is. Its next run follows them.

    :raises ReplayMissing: there is none of that id.
    :raises ReplayOver: it is over.
    """
    _check_pace(rate, stop_ratio)
    done = await connection.fetchval(_CHANGE, replay_id, rate, stop_ratio, timeout=_TIMEOUT_S)
    replay = await get(connection, replay_id)
    if done is None:
        raise ReplayOver(replay_id=replay_id, state=replay.state.value)
    return replay


def _check_pace(rate: float | None, stop_ratio: float | None) -> None:
    if rate is not None and not 0 < rate < float("inf"):
        raise ValueError("a rate is a number of messages a second, above zero")
    if stop_ratio is not None and not 0 <= stop_ratio < 1:
        raise ValueError("a failure ratio is from 0 to below 1")


def _replay(row: asyncpg.Record) -> Replay:
    return Replay(**{**row, "state": ReplayState(row["state"]), "chosen_by": json.loads(row["chosen_by"])})
