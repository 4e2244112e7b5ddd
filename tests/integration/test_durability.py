"""What the inbox says about a message survives a crash of the server, whatever a session or a handler has set."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from inbox import Attempt, Tx
from inbox.outcomes import Processed, Waiting
from inbox.queries import query
from tests.support.databases import Database
from tests.support.inboxes import (
    Handler,
    StartProcess,
    assert_charged,
    message,
)


async def test_a_handler_cannot_make_its_commit_less_durable(process: StartProcess, database: Database) -> None:
    one = await process()
    await watch_durability(database)

    async def weaken(_: Attempt, tx: Tx) -> None:
        await tx.execute("set local synchronous_commit = off")
        assert await tx.fetchval("show synchronous_commit") == "off"

    assert await one.attempt(message(), Handler(weaken)) == Processed(1)
    assert await one.attempt(message("m-2"), Handler(weaken, message_id="m-2"), redelivered=True) == Processed(1)
    assert await durability(database) == ["on", "on"]


async def test_a_session_that_got_less_durable_since_the_start_commits_durably_all_the_same(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await watch_durability(database)
    for setting in ("off", "local", "remote_write", "remote_apply"):
        await database.execute(f"alter database {database.name} set synchronous_commit = {setting}")
        await one.end_sessions()
        assert await one.attempt(message(setting), Handler(message_id=setting)) == Processed(1)
    assert await durability(database) == ["on", "on", "remote_write", "remote_apply"]


async def test_a_transaction_that_has_said_something_about_a_message_commits_durably(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await one.attempt(message(), Handler(ValueError("no")))
    session = await database.connect(synchronous_commit="off")
    key, claim_id = message().key, uuid4()
    identity = ("billing", "/shop", "m-1", "order.placed", b"", b"", "shop", "order.placed", None)
    for statement, arguments in (
        (query("start_attempt"), (key, claim_id, uuid4(), False, True, *identity, 3, 3, [0.0], 0.0)),
        (
            query("record_outcome"),
            (key, claim_id, uuid4(), False, False, *identity, 0, "failed", "E", "no", None, None, None, 3, 3, [0.0]),
        ),
        (query("settle_debt"), (key, claim_id, [0.0])),
        ("call inbox.stamp($1)", (key,)),
    ):
        before, now = await setting_of(session, statement, arguments)
        assert (before, now) == ("off", "on"), statement


async def setting_of(session: Any, statement: str, arguments: tuple[object, ...]) -> tuple[str, str]:
    """Return `synchronous_commit` before a statement and after it, in its transaction, which is committed."""
    async with session.transaction():
        before = await session.fetchval("show synchronous_commit")
        await session.fetch(statement, *arguments)
        return before, await session.fetchval("show synchronous_commit")


async def watch_durability(database: Database) -> None:
    """Note with which `synchronous_commit` receipts are written."""
    await database.execute(
        "create table durability (entry integer generated always as identity, setting text);"
        "create function note() returns trigger language plpgsql as $$ begin "
        "insert into durability (setting) values (current_setting('synchronous_commit')); return null; end $$;"
        "create trigger note after insert on inbox.receipt for each row execute function note()"
    )


async def durability(database: Database) -> list[str]:
    return [row["setting"] for row in await database.fetch("select setting from durability order by entry")]


async def test_a_failure_is_recorded_durably_whatever_the_handler_set(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def weaken(_: Attempt, tx: Tx) -> None:
        await tx.execute("set local synchronous_commit = off")
        await tx.execute("set local transaction_read_only = on")
        raise ValueError("no")

    assert await one.attempt(message(), Handler(weaken)) == Waiting(1, 0.0, charged=True, error_class="ValueError")
    await assert_charged(database, "ValueError")
