"""Handlers that work under a role which sees no more than one tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from inbox import Attempt, Tx
from inbox.outcomes import Processed
from servers import PostgresServer
from tests.support.databases import Database
from tests.support.inboxes import PROCESSED, Handler, at_rest, message, process_on, standing
from tests.support.ledger import create_ledger


@pytest_asyncio.fixture
async def tenant(own_postgres: PostgresServer, own_database: Database) -> AsyncIterator[str]:
    """A role that may write effects and nothing else, and that the product's role may take."""
    await create_ledger(own_database)
    schema = await own_database.fetchval("select relnamespace::regnamespace from pg_class where relname = 'ledger'")
    administrator = await asyncpg.connect(own_postgres.url(own_database.name, superuser=True))
    await administrator.execute(
        f"create role tenant; grant tenant to inbox; grant usage on schema {schema} to tenant;"
        f"grant insert on {schema}.ledger to tenant"
    )
    try:
        yield "tenant"
    finally:
        await administrator.execute("drop owned by tenant; drop role tenant")
        await administrator.close()


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
async def test_a_handler_that_takes_a_tenants_role_is_stamped_under_the_fleets_own(
    own_database: Database, tenant: str, redelivered: bool
) -> None:
    schema = await own_database.fetchval("select relnamespace::regnamespace from pg_class where relname = 'ledger'")

    async def act_for(_: Attempt, tx: Tx) -> None:
        await tx.execute(f"set local role {tenant}")
        await tx.execute(f"insert into {schema}.ledger (message_id, attempt, writer) values ('m-1', 1, current_user)")

    async with process_on(own_database, "lanes") as one:
        outcome = await one.attempt(message(), Handler(act_for, writes=False), redelivered=redelivered)
        assert outcome == Processed(1)
        assert await standing(own_database, message()) == PROCESSED
        assert await own_database.fetchval("select writer from ledger") == tenant
        assert await one.attempt(message("m-2"), Handler(message_id="m-2")) == Processed(1)
        assert await own_database.fetchval("select writer from ledger where message_id = 'm-2'") == "handler"
        await at_rest(own_database)
