"""Discards: messages that wait or have ended, taken off the record exactly as an operator saw them.

A discard cannot be undone. So what is discarded is held together with the state and generation in which it was seen,
and one that has changed since stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import UUID

import asyncpg

from inbox.messages import Filter, MessageRow, operator
from inbox.queries import query
from inbox.states import State

_FREEZE = query("freeze_messages")
_DISCARD = query("discard_message")
_TIMEOUT_S = 60.0
_PAGE = 500

DISCARDABLE = frozenset({State.WAITING, State.EXHAUSTED, State.REJECTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A message as it stood when it was looked at: little enough to hold very many of them."""

    key: UUID
    consumer: str
    message_id: str
    state: State
    generation: int


class DiscardAnswer(str, Enum):
    """What became of an operator's wish to discard a message."""

    DISCARDED = "discarded"
    CONTENDED = "contended"  # a copy of it is in somebody's hands: ask again
    ATTEMPTING = "attempting"  # an attempt has no outcome yet: wait for it
    CHANGED = "changed"  # its state or generation is not the one that was seen: look again
    PROCESSED = "processed"
    MISSING = "missing"


async def freeze(connection: asyncpg.Connection[Any], chosen: Filter, *, limit: int | None = None) -> list[Seen]:
    """Return all messages that a filter means at this one moment, the oldest change first.

    What is changed later by this list is what was seen: see `discard`. Within a transaction alone.

    :param limit: no more than this many.
    """
    names: dict[str, str] = {}  # so that each consumer's name is held once
    return [
        Seen(
            key=row["key"],
            consumer=names.setdefault(row["consumer"], row["consumer"]),
            message_id=row["message_id"],
            state=State(row["state"]),
            generation=row["generation"],
        )
        async for row in connection.cursor(_FREEZE, *chosen.arguments(), limit, prefetch=_PAGE, timeout=_TIMEOUT_S)
    ]


async def discard(
    connection: asyncpg.Connection[Any], seen: MessageRow | Seen, *, by_whom: str, reason: str
) -> DiscardAnswer:
    """Discard a message that waits or has ended, if its state and generation are those seen. One transaction.

    No copy of it starts an attempt any more. A record of its exhaustion that nobody has acknowledged stays.

    :param by_whom: kept in its history.
    :param reason: why; kept in its history, too.
    :raises ValueError: nobody is named, or no reason is given.
    """
    by_whom, reason = operator(by_whom, reason)
    answer = await connection.fetchval(
        _DISCARD, seen.key, seen.generation, seen.state.value, by_whom, reason, timeout=_TIMEOUT_S
    )
    return DiscardAnswer(answer)
