"""Obligations: what messages on record owe to queues, as the republisher finds, reads and clears it.

A message that was replayed, or that the sweep found stranded, owes a copy to its work queue; one that has ended owes a
dead letter. The flag is cleared after the broker's confirm, from the row as it was found: so a crash in between costs a
copy that is not needed, and never one that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import asyncpg

from inbox.envelope import Message
from inbox.queries import query
from inbox.states import State

_FIND = query("find_owed")
_READ = query("read_owed")
_CLEAR = query("clear_owed")
_TIMEOUT_S = 10.0
_FROM_THE_START = (datetime.min.replace(tzinfo=UTC), UUID(int=0))


class Owed(str, Enum):
    """What a message owes."""

    COPY = "copy"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obligation:
    """One thing that a message owes, and the message as it was when that was found.

    :param changed_at: of the row; with generation and state it says which version of the row this is.
    """

    what: Owed
    key: UUID
    generation: int
    state: State
    changed_at: datetime
    message_id: str
    type: str
    body_bytes: int

    @property
    def version(self) -> tuple[str, UUID, int, str, datetime]:
        """The obligation and the version of its row, as the statements take them."""
        return self.what.value, self.key, self.generation, self.state.value, self.changed_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Owing:
    """A message that owes something, with its bytes.

    :param reason: why it has ended.
    :param error_class: of its last attempt.
    :param ended_at: None as long as it has not ended.
    """

    obligation: Obligation
    message: Message
    reason: str | None
    error_class: str | None
    ended_at: datetime | None


async def find(
    connection: asyncpg.Connection[Any], what: Owed, consumer: str, *, after: Obligation | None = None, limit: int
) -> list[Obligation]:
    """Return what a consumer's messages owe, the longest owed first.

    :param consumer: by key name.
    :param after: go on after this one.
    :param limit: how many at most.
    """
    position = _FROM_THE_START if after is None else (after.changed_at, after.key)
    rows = await connection.fetch(_FIND, what.value, consumer, *position, limit, timeout=_TIMEOUT_S)
    return [Obligation(what=what, **{**row, "state": State(row["state"])}) for row in rows]


async def read(connection: asyncpg.Connection[Any], obligation: Obligation) -> Owing | None:
    """Return the message that owes this, or None if it has changed since that was found."""
    row = await connection.fetchrow(_READ, *obligation.version, timeout=_TIMEOUT_S)
    if row is None:
        return None
    return Owing(
        obligation=obligation,
        message=Message(
            key=obligation.key,
            consumer=row["consumer"],
            source=row["source"],
            message_id=row["message_id"],
            type=row["type"],
            body=row["body"],
            properties=row["properties"],
            exchange=row["exchange"],
            routing_key=row["routing_key"],
            traceparent=row["traceparent"],
        ),
        reason=row["reason"],
        error_class=row["error_class"],
        ended_at=row["finished_at"],
    )


async def clear(connection: asyncpg.Connection[Any], obligation: Obligation) -> bool:
    """Say that an obligation is served.

    :return: False if the message has changed since it was found, so that what it owes now is not this.
    """
    return bool(await connection.fetchval(_CLEAR, *obligation.version, timeout=_TIMEOUT_S))
