"""Cleaning as a process does it, the clock moved on, and the proof that no claim waits meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from inbox import Attempt, Tx
from inbox.outcomes import Processed
from inbox.partitions import ensure
from inbox.retention import Cleaner, Horizons
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import Handler, Process, message

DAY_S = 86_400.0
MONTH_S = 30 * DAY_S
HORIZONS = Horizons(
    receipts_s=MONTH_S, messages_s=MONTH_S, exhaustions_s=MONTH_S, history_s=2 * MONTH_S, replays_s=2 * MONTH_S
)


def cleaner(process: Process, *, service: str = "test", horizons: Horizons = HORIZONS, **rest: Any) -> Cleaner:
    return Cleaner(process.housekeeping, service=service, consumers=["billing"], horizons=horizons, **rest)


async def clean(process: Process, **differences: Any) -> dict[str, int]:
    """Do rounds until nothing is left to do, and return what was removed."""
    removed: dict[str, int] = {}

    def count(what: str, number: int) -> None:
        removed[what] = removed.get(what, 0) + number

    cleaning = cleaner(process, removed=count, **differences)
    async with asyncio.timeout(30):
        while await cleaning.round():
            pass
    return removed


async def let_pass(database: Database, days: float) -> None:
    """Move the clock on, by so many days from now, and make the partitions that are then needed."""
    await database.execute(
        "create or replace function inbox.clock() returns timestamptz language sql volatile as "
        f"$$ select clock_timestamp() + interval '{days} days' $$"
    )
    await ensure(await database.connect(), retention_s=MONTH_S)


async def partitions(database: Database) -> list[str]:
    return [
        row["name"] for row in await database.fetch("select name from inbox.partitions_of('receipt') order by lower")
    ]


async def tables(database: Database) -> set[str]:
    rows = await database.fetch(
        "select relname from pg_class where relnamespace = 'inbox'::regnamespace and relkind = 'r' "
        "and relname like 'receipt\\_%'"
    )
    return {row["relname"] for row in rows}


@asynccontextmanager
async def claims(one: Process) -> AsyncIterator[list[float]]:
    """Make claims one after the other in two lanes, and yield how long each has taken, in seconds."""
    took: list[float] = []
    stop = asyncio.Event()

    async def lane(name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            began = monotonic()
            outcome = await one.attempt(
                message(f"{name}-{number}"), Handler(message_id=f"{name}-{number}"), redelivered=number % 3 == 0
            )
            took.append(monotonic() - began)
            assert outcome == Processed(1)

    async with asyncio.TaskGroup() as lanes:
        for name in ("a", "b"):
            lanes.create_task(lane(name))
        try:
            yield took
        finally:
            stop.set()


@asynccontextmanager
async def long_attempts(one: Process, seconds: float) -> AsyncIterator[None]:
    """Let two attempts of this length run at every moment, overlapping."""
    stop = asyncio.Event()

    async def work(_: Attempt, tx: Tx) -> None:
        await tx.fetch("select pg_sleep($1)", seconds)

    async def lane(name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            id_ = f"{name}-{number}"
            assert await one.attempt(message(id_), Handler(work, message_id=id_)) == Processed(1)

    async with asyncio.TaskGroup() as lanes:
        for name in ("long-a", "long-b"):
            lanes.create_task(lane(name))
            await asyncio.sleep(seconds / 2)
        try:
            yield
        finally:
            stop.set()


async def watch_locks(database: Database, seen: list[str]) -> None:
    """Note whoever asks for an exclusive lock on all receipts, until cancelled."""
    connection = await database.connect()
    while True:
        rows = await connection.fetch(
            "select l.mode, a.query from pg_locks l join pg_stat_activity a using (pid) "
            "where l.relation = 'inbox.receipt'::regclass and l.mode = 'AccessExclusiveLock'"
        )
        seen.extend(row["query"] for row in rows)
        await asyncio.sleep(0.005)


async def never_waited(database: Database, one: Process) -> None:
    """Clean several partitions while long and short attempts run, and assert that none of them waited for it."""
    await let_pass(database, 100)
    seen: list[str] = []
    assert len(await partitions(database)) > 3
    watching = asyncio.create_task(watch_locks(database, seen))
    async with long_attempts(one, 1.0), claims(one) as took:
        await eventually(lambda: len(took) > 20, what="claims going on")
        removed = await clean(one)
        during = len(took)
        await eventually(lambda: len(took) > during + 20, what="claims going on after it")
    watching.cancel()
    assert removed["receipt_partition"] >= 2
    assert max(took) < 1.0, f"a claim took {max(took):.2f} s"
    assert seen == []
    assert await tables(database) == set(await partitions(database))
