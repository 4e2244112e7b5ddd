"""Exhaustion records as operators see them: list, acknowledge, retry.

A record is an obligation until it is acknowledged: by the consumer's `on_exhausted` handler, or here by a person. One
that its handler could not take, or that has no handler, waits; nothing removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import asyncpg

from inbox.queries import query
from inbox.safe_text import MAX_NAME_TEXT, safe

_LIST = query("list_exhaustions")
_COUNT = query("count_exhaustions")
_ACKNOWLEDGE = query("acknowledge_exhaustions")
_RETRY = query("retry_exhaustions")
_TIMEOUT_S = 30.0

BEFORE_ALL = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
"""The position before the first record."""


class ExhaustionState(str, Enum):
    """Where the delivery of a record stands."""

    WAITING = "waiting"
    TRYING = "trying"
    STUCK = "stuck"
    ACKNOWLEDGED = "acknowledged"


class Answer(str, Enum):
    """What became of an operator's word about one record."""

    DONE = "done"
    BUSY = "busy"  # its handler is running, and may acknowledge it: ask again
    ACKNOWLEDGED = "acknowledged"  # it was before; nothing was changed
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustion:
    """One exhaustion record, without the message's bytes.

    :param number: how many attempts the message had in this generation.
    :param claim_id: of the last of them.
    :param reason: "attempts" or "aborts", whichever was used up.
    :param tries: of its delivery; `aborts` are those that were not charged.
    :param due_at: before this it is not tried again; of meaning while it waits.
    :param tried_by: the process start that tried it last.
    :param try_error: why that did not end well.
    """

    id: UUID
    key: UUID
    generation: int
    number: int
    claim_id: UUID
    consumer: str
    source: str
    message_id: str
    type: str
    reason: str
    error_class: str | None
    error_text: str | None
    body_bytes: int
    first_seen_at: datetime
    exhausted_at: datetime
    state: ExhaustionState
    tries: int
    aborts: int
    due_at: datetime
    tried_by: UUID | None
    try_error: str | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unacknowledged:
    """How many records of a consumer nobody has acknowledged, and how many of those wait for an operator."""

    records: int = 0
    stuck: int = 0


async def find(
    connection: asyncpg.Connection[Any],
    *,
    consumer: str | None = None,
    states: Collection[ExhaustionState] | None = None,
    ids: Collection[UUID] | None = None,
    key: UUID | None = None,
    after: Exhaustion | None = None,
    limit: int = 100,
) -> list[Exhaustion]:
    """Return records, oldest first.

    :param consumer: of this consumer only, by key name.
    :param states: in one of these states; None: all that are not acknowledged.
    :param ids: only these.
    :param key: of this message only, one for each generation that was exhausted.
    :param after: go on after this one.
    :param limit: how many at most.
    """
    position = BEFORE_ALL if after is None else (after.exhausted_at, after.id)
    rows = await connection.fetch(
        _LIST,
        consumer,
        None if states is None else [state.value for state in states],
        None if ids is None else list(ids),
        key,
        *position,
        limit,
        timeout=_TIMEOUT_S,
    )
    return [Exhaustion(**{**row, "state": ExhaustionState(row["state"])}) for row in rows]


async def count(connection: asyncpg.Connection[Any], consumers: Collection[str]) -> dict[str, Unacknowledged]:
    """Return the unacknowledged records of consumers, by key name."""
    rows = await connection.fetch(_COUNT, list(consumers), timeout=_TIMEOUT_S)
    found = {row["consumer"]: Unacknowledged(records=row["records"], stuck=row["stuck"]) for row in rows}
    return {consumer: found.get(consumer, Unacknowledged()) for consumer in consumers}


async def acknowledge(
    connection: asyncpg.Connection[Any], ids: Sequence[UUID], *, by_whom: str
) -> Mapping[UUID, Answer]:
    """Acknowledge records in somebody's name, so that their handler gets them no more. Return an answer for each.

    :param by_whom: kept with each record.
    :raises ValueError: nobody is named.
    """
    if not by_whom.strip():
        raise ValueError("an acknowledgement needs the name of who gives it")
    return _answers(await connection.fetch(_ACKNOWLEDGE, list(ids), safe(by_whom, MAX_NAME_TEXT), timeout=_TIMEOUT_S))


async def retry(connection: asyncpg.Connection[Any], ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
    """Let records be tried anew: at once, and with all their tries. Return an answer for each."""
    return _answers(await connection.fetch(_RETRY, list(ids), timeout=_TIMEOUT_S))


def _answers(rows: Sequence[asyncpg.Record]) -> dict[UUID, Answer]:
    return {row["id"]: Answer(row["answer"]) for row in rows}
