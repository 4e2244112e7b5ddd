"""The database's one clock, moved on by a test."""

from __future__ import annotations

from tests.support.databases import Database


class Clock:
    """Moves `inbox.clock()` of a database on, for everybody who uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ahead_s = 0.0

    async def move_on(self, seconds: float) -> None:
        """Move it on by so many seconds more. Heartbeats of processes that live come with it."""
        self._ahead_s += seconds
        await self._database.execute(
            "create or replace function inbox.clock() returns timestamptz language sql volatile as "
            f"$$ select clock_timestamp() + interval '{self._ahead_s} seconds' $$"
        )
