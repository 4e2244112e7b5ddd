"""Operators' commands with a role that may do less than a fleet, on a schema that does not fit, on a standby."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest_asyncio

from consumers.cli.exits import Exit
from servers import PostgresServer
from tests.support.databases import Database
from tests.support.inboxes import process_on
from tests.support.ledger import create_ledger
from tests.support.operators import Desk, exhausted

REPLAY = ("messages", "replay", "m-1", "--reason", "because")
ROLE = "operator"


@pytest_asyncio.fixture
async def desk(tmp_path: Path, own_postgres: PostgresServer, own_database: Database) -> AsyncIterator[Desk]:
    """An operator whose role may connect and nothing else; one message is exhausted."""
    await create_ledger(own_database)
    async with process_on(own_database, "lanes") as one:
        await exhausted(one, "m-1")
    administrator = await asyncpg.connect(own_postgres.url(own_database.name, superuser=True))
    await administrator.execute(f"create role {ROLE} login password '{ROLE}'")
    owner = urlsplit(own_database.url)
    made = Desk(tmp_path, own_database)
    made.environ["DATABASE_URL"] = owner._replace(netloc=f"{ROLE}:{ROLE}@{owner.hostname}:{owner.port}").geturl()
    try:
        yield made
    finally:
        await administrator.execute(f"drop owned by {ROLE}; drop role {ROLE}")
        await administrator.close()


async def granted(desk: Desk, own_database: Database, *arguments: str) -> None:
    """Run a command, which is refused, and do what the refusal asks for."""
    refused = await desk.run(*arguments, code=Exit.PRECONDITION)
    assert refused.stdout == "" and f"role '{ROLE}' may not" in refused.stderr
    for statement in refused.stderr.strip().split("run: ")[1].split("; "):
        await own_database.execute(statement)


async def test_what_a_refusal_asks_for_is_enough_to_look_and_then_to_change(desk: Desk, own_database: Database) -> None:
    await granted(desk, own_database, "messages", "list")
    assert len(await desk.lines("messages", "list", "--output", "json")) == 1
    (record,) = await desk.lines("exhausted", "list", "--output", "json")
    await desk.run("messages", "show", "m-1")
    await desk.run("replays", "list")
    await desk.run(*REPLAY, "--dry-run")
    await granted(desk, own_database, *REPLAY)
    (frozen, *_) = await desk.lines(*REPLAY)
    await desk.run("replays", "resume", frozen["id"])
    await desk.run("replays", "show", frozen["id"])
    await desk.run("messages", "discard", "m-1", "--reason", "because")
    await desk.run("exhausted", "retry", record["id"])
    await desk.run("exhausted", "ack", record["id"])
    await desk.run("messages", "show", "m-1")


async def test_a_schema_that_does_not_fit_is_refused_with_what_to_do(
    desk: Desk, own_database: Database, tmp_path: Path
) -> None:
    desk.environ["DATABASE_URL"] = own_database.url
    await own_database.execute("insert into inbox.migration (number, name, checksum) values (9999, 'later', 'x')")
    assert "newer build" in (await desk.run("messages", "list", code=Exit.PRECONDITION)).stderr
    await own_database.execute("delete from inbox.migration where number > 1")
    assert "inbox-fleet migrate" in (await desk.run(*REPLAY, code=Exit.PRECONDITION)).stderr


async def test_a_server_that_takes_no_writes_is_named_and_can_be_asked(desk: Desk, own_database: Database) -> None:
    desk.environ["DATABASE_URL"] = own_database.url
    await own_database.execute(f'alter database "{own_database.name}" set default_transaction_read_only = on')
    assert len(await desk.lines("messages", "list", "--output", "json")) == 1
    refused = await desk.run(*REPLAY, code=Exit.UNREACHABLE)
    assert "takes no writes" in refused.stderr
