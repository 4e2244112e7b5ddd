"""What tests of the republisher have in common: messages on record that owe something, and what becomes of that."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from uuid import UUID

from inbox import Message
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import message, process_on
from tests.support.operators import exhausted
from tests.support.property_lists import listing
from tests.support.service import QUEUE, SOURCE, Service

DEAD = f"{QUEUE}.dead"


async def on_record(database: Database, *ids: str, **behaviour: Any) -> list[UUID]:
    """Put messages of the service under test on record as exhausted, each of which owes a dead letter.

    They are as if they had been published by `service.publish` and failed; return their keys. No fleet process runs.
    """
    keys = []
    async with process_on(database, "record") as process:
        for each in ids:
            (made,) = await exhausted(process, each, **_fields(each, behaviour))
            keys.append(made.key)
    return keys


def _fields(message_id: str, behaviour: dict[str, Any]) -> dict[str, Any]:
    properties = listing(
        message_id=message_id, type="test.work", app_id=SOURCE, content_type="application/json", delivery_mode=2
    )
    return {
        "consumer": "work",
        "source": SOURCE,
        "type": "test.work",
        "body": json.dumps(behaviour).encode(),
        "properties": properties,
        "exchange": "",
        "routing_key": QUEUE,
    }


def recorded(message_id: str, **behaviour: Any) -> Message:
    """Return a message as `on_record` puts it there."""
    return message(message_id, **_fields(message_id, behaviour))


async def owed(database: Database) -> int:
    """Return how many messages owe something."""
    number: int = await database.fetchval("select count(*) from inbox.message where copy_needed or dead_letter_needed")
    return number


async def ended(service: Service, number: int, state: str = "exhausted", within_s: float = 30.0) -> list[UUID]:
    """Wait until so many messages have ended in a state, and nobody owes anything; return their keys."""

    async def all_ended() -> list[UUID]:
        rows = await service.database.fetch("select key from inbox.message where state = $1", state)
        assert len(rows) == number and not await owed(service.database)
        return [row["key"] for row in rows]

    return await eventually(all_ended, within_s, what=f"{number} messages being {state} and owing nothing")


async def nothing_on_record(service: Service, within_s: float = 30.0) -> None:
    """Wait until every message that was on record is processed."""

    async def nothing() -> bool:
        return not await service.database.fetchval("select count(*) from inbox.message")

    await eventually(nothing, within_s, what="every message on record being processed")


async def dead_letters(service: Service) -> Counter[str]:
    """Take the dead letters, and return how many there are of each message."""
    return Counter(str(letter.message_id) for letter in await service.vhost.drain(DEAD))
