"""What a handler under test writes, and the count that decides: exactly one effect for each message.

The table has no unique key on purpose. A constraint would hide the double effect that the tests look for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.support.databases import Database

DDL = """
create table ledger (
    entry bigint generated always as identity primary key,
    message_id text not null,
    attempt integer not null,
    writer text not null,
    written_at timestamptz not null default clock_timestamp()
)
"""
INSERT = "insert into ledger (message_id, attempt, writer) values ($1, $2, $3)"


async def create_ledger(database: Database) -> None:
    """Create the empty ledger."""
    await database.execute(DDL)


async def effects(database: Database) -> Counter[str]:
    """Return how many effects each message has."""
    rows = await database.fetch("select message_id, count(*) as effects from ledger group by message_id")
    return Counter({row["message_id"]: row["effects"] for row in rows})


async def exactly_one_effect_each(database: Database, ids: Iterable[str]) -> None:
    """Assert that every message of `ids` has one effect and that no other message has any."""
    found, expected = await effects(database), set(ids)
    lost = sorted(expected - found.keys())
    doubled = {message_id: number for message_id, number in sorted(found.items()) if number > 1}
    strangers = sorted(found.keys() - expected)
    assert not (lost or doubled or strangers), (
        f"of {len(expected)} messages: {len(lost)} lost {lost[:5]}, "
        f"{len(doubled)} doubled {dict(list(doubled.items())[:5])}, {len(strangers)} unexpected {strangers[:5]}"
    )
