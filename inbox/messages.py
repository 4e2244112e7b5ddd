"""Messages as operators see them: find them, and read what happened to one.

Everything here reads what is on record, without bodies. A message that was processed at once is a receipt, which has
its key alone: to find it takes consumer, source and message id, of which the key is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from inbox import exhaustions
from inbox.exhaustions import Exhaustion, ExhaustionState
from inbox.queries import query
from inbox.safe_text import MAX_NAME_TEXT, safe
from inbox.states import State

_FIND = query("find_messages")
_COUNT = query("count_messages")
_NAMED = query("named_messages")
_ATTEMPTS = query("attempts_of")
_HISTORY = query("history_of")
_RECEIPT = query("receipt_of")
_BODY = query("body_of")
_CLOCK = query("clock")
_TIMEOUT_S = 60.0
_MAX_RECORDS = 1_000

REPLAYABLE = frozenset({State.EXHAUSTED, State.REJECTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which messages are meant: those that fit every condition given.

    :param consumer: by key name.
    :param error_classes: of the last attempt: the whole name, or its part after the last dot.
    :param since: changed at this moment or later; for a message that has ended, that is when it did.
    :param until: changed before this moment.
    """

    consumer: str | None = None
    states: frozenset[State] | None = None
    types: frozenset[str] | None = None
    error_classes: frozenset[str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    keys: frozenset[UUID] | None = None

    def arguments(self) -> tuple[object, ...]:
        """Return the conditions as the statements take them."""
        states = None if self.states is None else [state.value for state in self.states]
        return (
            self.consumer,
            states,
            *(None if chosen is None else list(chosen) for chosen in (self.types, self.error_classes)),
            self.since,
            self.until,
            None if self.keys is None else list(self.keys),
        )

    def described(self) -> dict[str, Any]:
        """Return the conditions as JSON can hold them; of keys, how many there are."""
        said: dict[str, Any] = {
            "consumer": self.consumer,
            "states": None if self.states is None else sorted(self.states),
            "types": None if self.types is None else sorted(self.types),
            "error_classes": None if self.error_classes is None else sorted(self.error_classes),
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "keys": None if self.keys is None else len(self.keys),
        }
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message on record, without its bytes.

    :param reason: why it has ended.
    :param attempts: in this generation.
    :param error_class: of its last attempt.
    :param body_bytes: of the body as it came.
    :param kept_bytes: how many of them are on record: all, unless it was too large to be begun.
    :param body_sha256: of the body as it came, in hex, where it is not on record as a whole.
    :param copy_needed: a copy of it is owed to its queue.
    :param dead_letter_needed: a copy of it is owed to the dead-letter queue.
    """

    key: UUID
    consumer: str
    source: str
    message_id: str
    type: str
    state: State
    reason: str | None
    generation: int
    attempts: int
    due_at: datetime | None
    finished_at: datetime | None
    first_seen_at: datetime
    changed_at: datetime
    error_class: str | None
    body_bytes: int
    kept_bytes: int
    body_sha256: str | None
    copy_needed: bool
    dead_letter_needed: bool

    @property
    def is_whole(self) -> bool:
        """Whether all of its bytes are on record."""
        return self.kept_bytes == self.body_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a message is known by."""

    key: UUID
    consumer: str
    source: str
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt, and the process that made it: `host`, `pid` and `build` are None when that is not known any more.

    :param outcome: "processed", or one of `AttemptOutcome`; a "started" one has no outcome yet.
    """

    generation: int
    number: int
    claim_id: UUID
    outcome: str
    charged: bool
    alone: bool
    started_at: datetime
    finished_at: datetime | None
    error_class: str | None
    error_text: str | None
    error_trace: str | None
    member_id: UUID
    host: str | None
    pid: int | None
    build: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """What happened to a message beside its attempts.

    :param event: "replayed", "discarded", or "processed".
    :param was: the state that it left, in this generation.
    :param by_whom: who did it; None for "processed".
    """

    generation: int
    event: str
    was: str
    by_whom: str | None
    reason: str | None
    replay_id: UUID | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that is on record about one message.

    :param type: None if only its receipt is there.
    :param row: None once it is processed, or removed by retention.
    :param processed_at: its receipt's.
    :param read_at: the moment that this was so, in database time.
    """

    identity: Identity
    read_at: datetime
    type: str | None
    first_seen_at: datetime | None
    row: MessageRow | None
    processed_at: datetime | None
    attempts: tuple[AttemptRecord, ...]
    history: tuple[HistoryEvent, ...]
    exhaustions: tuple[Exhaustion, ...] = field(default=())


async def clock(connection: asyncpg.Connection[Any]) -> datetime:
    """Return the time by which everything here is on record: the database's."""
    now: datetime = await connection.fetchval(_CLOCK, timeout=_TIMEOUT_S)
    return now


async def find(
    connection: asyncpg.Connection[Any], chosen: Filter, *, after: MessageRow | None = None, limit: int = 100
) -> list[MessageRow]:
    """Return messages on record, the one whose last change is oldest first.

    Page after page, none that stays as it is is missed or comes twice; one that changes meanwhile comes at the end.

    :param after: go on after this one.
    :param limit: how many at most.
    """
    position = (None, None) if after is None else (after.changed_at, after.key)
    return await find_after(connection, chosen, position=position, limit=limit)


async def find_after(
    connection: asyncpg.Connection[Any],
    chosen: Filter,
    *,
    position: tuple[datetime, UUID] | tuple[None, None],
    limit: int,
) -> list[MessageRow]:
    """Return messages as `find` does, after a position made of `changed_at` and key."""
    rows = await connection.fetch(_FIND, *chosen.arguments(), *position, limit, timeout=_TIMEOUT_S)
    return [_row(row) for row in rows]


async def count(
    connection: asyncpg.Connection[Any], chosen: Filter, *, limit: int | None = None
) -> Mapping[State, int]:
    """Return how many messages a filter means, by state.

    :param limit: count no more than this many, the oldest change first.
    """
    rows = await connection.fetch(_COUNT, *chosen.arguments(), limit, timeout=_TIMEOUT_S)
    return {State(row["state"]): row["messages"] for row in rows}


async def named(
    connection: asyncpg.Connection[Any], name: str, *, consumer: str | None = None, source: str | None = None
) -> list[Identity]:
    """Return every message that is known by a name: its key, or the message id that its sender gave it.

    Several consumers and sources may know one message id. A message that was processed at once is not found by its id.
    """
    rows = await connection.fetch(_NAMED, _key(name), name.replace("\x00", ""), consumer, source, timeout=_TIMEOUT_S)
    return [Identity(**row) for row in rows]


async def story(connection: asyncpg.Connection[Any], identity: Identity) -> Story | None:
    """Return what is on record about a message, as of one moment; None if there is nothing.

    The processes of its attempts are remembered for some days, and their rows go with the message's.
    """
    key = identity.key
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        read_at = await clock(connection)
        rows = await find_after(connection, Filter(keys=frozenset({key})), position=(None, None), limit=1)
        attempts = await connection.fetch(_ATTEMPTS, key, timeout=_TIMEOUT_S)
        history = await connection.fetch(_HISTORY, key, timeout=_TIMEOUT_S)
        processed_at = await connection.fetchval(_RECEIPT, key, timeout=_TIMEOUT_S)
        records = await exhaustions.find(connection, key=key, states=tuple(ExhaustionState), limit=_MAX_RECORDS)
    row = rows[0] if rows else None
    if row is None and processed_at is None and not history and not records:
        return None
    known: list[Any] = [*([] if row is None else [row]), *records]
    seen = [each.first_seen_at for each in known] + [event["first_seen_at"] for event in history]
    types = [each.type for each in known] + [event["type"] for event in history]
    kept = [msgspec.json.decode(event["attempts"], type=list[AttemptRecord]) for event in history if event["attempts"]]
    return Story(
        identity=identity,
        read_at=read_at,
        type=types[0] if types else None,
        first_seen_at=min(seen, default=None),
        row=row,
        processed_at=processed_at,
        attempts=(*(attempt for each in kept for attempt in each), *(AttemptRecord(**attempt) for attempt in attempts)),
        history=tuple(
            HistoryEvent(
                generation=event["generation"],
                event=event["event"],
                was=event["was"],
                by_whom=event["by_whom"],
                reason=event["reason"],
                replay_id=event["replay_id"],
                at=event["at"],
            )
            for event in history
        ),
        exhaustions=tuple(records),
    )


async def body(connection: asyncpg.Connection[Any], key: UUID) -> bytes | None:
    """Return a message's bytes as they were received; None where they are not kept, as of a processed message.

    Of one that was too large to be begun these are the first ones: see `MessageRow.is_whole`.
    """
    found: bytes | None = await connection.fetchval(_BODY, key, timeout=_TIMEOUT_S)
    return found


def operator(by_whom: str, reason: str) -> tuple[str, str]:
    """Return who and why as they are stored.

    :raises ValueError: one of them is empty.
    """
    if not by_whom.strip():
        raise ValueError("an operation needs the name of who does it")
    if not reason.strip():
        raise ValueError("an operation needs a reason")
    return safe(by_whom.strip(), MAX_NAME_TEXT), safe(reason.strip(), MAX_NAME_TEXT)


def _key(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None


def _row(row: asyncpg.Record) -> MessageRow:
    return MessageRow(**{**row, "state": State(row["state"])})
