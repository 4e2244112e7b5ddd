"""Exhaustion records, made as the product makes them: by a message whose only attempt fails."""

from __future__ import annotations

from uuid import UUID

from inbox import Policy
from tests.support.inboxes import Handler, Process, ended, message

ONCE = Policy(max_attempts=1, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=10.0)


async def exhausted_record(one: Process, message_id: str = "m-1") -> UUID:
    """Let a message end exhausted and return its record's id."""
    failing = message(message_id)
    ended(await one.attempt(failing, Handler(ValueError("no"), message_id=message_id, writes=False), ONCE))
    record_id: UUID = await one.database.fetchval(
        "select id from inbox.exhaustion where key = $1 order by generation desc limit 1", failing.key
    )
    return record_id


async def exhausted_records(one: Process, *ids: str) -> list[UUID]:
    """Let messages end exhausted and return their records' ids, oldest first."""
    return [await exhausted_record(one, message_id) for message_id in ids]
