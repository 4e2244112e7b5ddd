"""What the database of a soak says: read past the relays, on a connection for each look, since servers come and go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from inbox import message_key, messages
from soak_parts.facts import AttemptFact, OperationFact, RecordFact, RowFact, Tables
from soak_parts.mail import CONSUMER, SOURCE

_CONNECT_S = 3.0
_ANSWER_S = 30.0
LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""What is raised while the database is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the work is.

    :param ended: messages that have come to an end.
    :param still_open: messages on record that have not.
    :param untold: exhaustion records that the service has not acknowledged.
    :param owed: messages of which a copy or a dead letter is owed to the broker.
    """

    ended: int
    still_open: int
    untold: int
    owed: int


class Ledger:
    """The tables of the service and of the inbox.

    Args:
        url: The database's own, with a role that owns both.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    async def create(self, schema: str) -> None:
        """Make the service's tables, from SQL text."""
        async with self._connected() as connection:
            await connection.execute(schema)

    async def standing(self) -> Standing:
        """Return how far it is. Raises one of `LOST`."""
        async with self._connected() as connection:
            rows = await connection.fetch(
                "select (select count(*) from inbox.receipt) as processed, "
                "(select count(*) from inbox.exhaustion where acknowledged_at is null) as untold, "
                "count(*) filter (where finished_at is not null) as ended, "
                "count(*) filter (where finished_at is null) as still_open, "
                "count(*) filter (where copy_needed or dead_letter_needed) as owed from inbox.message"
            )
        [row] = rows
        return Standing(
            ended=row["processed"] + row["ended"],
            still_open=row["still_open"],
            untold=row["untold"],
            owed=row["owed"],
        )

    async def terminate_sessions(self) -> None:
        """End every session of the fleet, as an administrator would."""
        async with self._connected() as connection:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where starts_with(application_name, 'soak-')"
            )

    async def held(self) -> list[str]:
        """Return what sessions hold that have nothing to do: transactions and locks, as sentences."""
        async with self._connected() as connection:
            sessions = await connection.fetch(
                "select application_name, state, query from pg_stat_activity "
                "where starts_with(application_name, 'soak-') and state like 'idle in transaction%'"
            )
            locks = await connection.fetchval("select count(*) from pg_locks where locktype = 'advisory'")
        found = [f"a session of {row['application_name']} is {row['state']} after {row['query']!r}" for row in sessions]
        return [*found, *([f"{locks} advisory locks are held"] if locks else [])]

    async def tables(self, published: Collection[str]) -> Tables:
        """Return all that the judge wants to know, as of one moment."""
        keys = {message_key(CONSUMER, SOURCE, of): of for of in published}
        async with self._connected() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
            effects = await connection.fetch("select message_id, count(*) as number from effect group by message_id")
            receipts = await connection.fetch("select key from inbox.receipt")
            rows = await connection.fetch("select message_id, state, reason, generation from inbox.message")
            attempts = await connection.fetch(
                "select m.message_id, a.generation, a.number, a.outcome, a.charged, a.alone, p.pid "
                "from inbox.attempt a join inbox.message m using (key) left join inbox.member p on p.id = a.member_id"
            )
            kept = await connection.fetch("select message_id, attempts from inbox.history where event = 'processed'")
            operations = await connection.fetch(
                "select message_id, event, generation, was from inbox.history where event in ('replayed', 'discarded')"
            )
            records = await connection.fetch(
                "select id, message_id, generation, acknowledged_at is not null as acknowledged from inbox.exhaustion"
            )
            told = await connection.fetch("select record_id from told")
        return Tables(
            effects={row["message_id"]: row["number"] for row in effects},
            processed=frozenset(keys[row["key"]] for row in receipts if row["key"] in keys),
            strangers=sum(row["key"] not in keys for row in receipts),
            rows={
                row["message_id"]: RowFact(state=row["state"], reason=row["reason"], generation=row["generation"])
                for row in rows
            },
            attempts=[
                *(AttemptFact(**row) for row in attempts),
                *(_kept(row["message_id"], one) for row in kept for one in json.loads(row["attempts"])),
            ],
            operations=[OperationFact(**row) for row in operations],
            records=[RecordFact(**row) for row in records],
            told=Counter(row["record_id"] for row in told),
        )

    async def stories(self, ids: Collection[str]) -> dict[str, list[str]]:
        """Return what is on record about messages, as lines."""
        told = {}
        async with self._connected() as connection:
            for of in ids:
                key = message_key(CONSUMER, SOURCE, of)
                identity = messages.Identity(key=key, consumer=CONSUMER, source=SOURCE, message_id=of)
                told[of] = _lines(await messages.story(connection, identity))
        return told

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        connection = await asyncpg.connect(self._url, timeout=_CONNECT_S, command_timeout=_ANSWER_S)
        try:
            yield connection
        finally:
            connection.terminate()


def _kept(message_id: str, attempt: dict[str, Any]) -> AttemptFact:
    names = ("generation", "number", "outcome", "charged", "alone", "pid")
    return AttemptFact(message_id=message_id, **{name: attempt[name] for name in names})


def _lines(story: messages.Story | None) -> list[str]:
    if story is None:
        return ["nothing is on record"]
    lines = [] if story.row is None else [f"{story.row.state.value} in generation {story.row.generation}"]
    if story.processed_at is not None:
        lines.append(f"processed {story.processed_at:%H:%M:%S.%f}")
    for one in story.attempts:
        ended = "" if one.finished_at is None else f"{one.finished_at:%H:%M:%S.%f}"
        lines.append(
            f"generation {one.generation} attempt {one.number}: {one.outcome}, "
            f"{'charged' if one.charged else 'uncharged'}, {'alone' if one.alone else 'in company'}, "
            f"{one.started_at:%H:%M:%S.%f} to {ended}, pid {one.pid}, {one.error_class or 'no error'}"
        )
    lines += [f"{event.event} {event.at:%H:%M:%S.%f} {event.by_whom or ''}".rstrip() for event in story.history]
    return lines
