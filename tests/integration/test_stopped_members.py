"""A process that stops in order has said its last word: nothing that still runs in it may take that back."""

from __future__ import annotations

import asyncio
import contextlib

from inbox import Member
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import StartProcess


async def test_a_heartbeat_after_the_stop_does_not_revive_a_process(process: StartProcess, database: Database) -> None:
    pool = (await process()).housekeeping
    member = Member(service="test", heartbeat_s=0.01)
    await member.register(pool)
    await member.stop(pool)
    beating = asyncio.ensure_future(member.beat(pool))

    async def has_beaten() -> bool:
        return await database.fetchval(
            "select heartbeat_at > stopped_at or stopped_at is null from inbox.member where id = $1", member.id
        )

    await eventually(has_beaten, what="a heartbeat after the stop")
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
    assert await database.fetchval("select stopped_at is not null from inbox.member where id = $1", member.id)
