"""A role that may not do all that a fleet does is refused by name, and what the refusal asks for is enough."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio

from consumers import startup
from consumers.cli.exits import Exit
from consumers.config import load
from consumers.errors import DatabaseUnavailable
from consumers.plan import plan
from consumers.secrets import Secret
from inbox import PrivilegesMissing, check_server, migrate, pending
from inbox.outcomes import Processed, Waiting
from inbox.partitions import ensure
from servers import PostgresServer
from tests.support.command import inbox_fleet
from tests.support.configs import write_config
from tests.support.databases import Database
from tests.support.inboxes import Handler, message, process_on
from tests.support.ledger import DDL

HANDLERS = """
from consumers import Consumer

orders = Consumer("orders")

@orders.on("order.placed")
async def handle(envelope, tx): ...
"""
CONSUMERS: dict[str, dict[str, Any]] = {"orders": {"queue": "orders", "handler": "role_handlers:orders"}}
NOBODY = "amqp://127.0.0.1:1/x"


@dataclass(frozen=True, slots=True)
class Stranger:
    """The role `stranger`, which may connect and nothing else, and the superuser who can change that."""

    url: str
    administrator: asyncpg.Connection[Any]
    database: Database
    superuser: str

    async def grant(self, *statements: str) -> None:
        for statement in statements:
            await self.administrator.execute(statement)

    async def lacks(self) -> tuple[str, ...]:
        """Return what the check asks for."""
        return (await self.refusal()).grants

    async def refusal(self) -> PrivilegesMissing:
        """Return what the check says."""
        connection = await asyncpg.connect(self.url)
        try:
            with pytest.raises(PrivilegesMissing, match="role 'stranger' may not") as refused:
                await check_server(connection)
            return refused.value
        finally:
            await connection.close()

    async def lacks_nothing(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await check_server(connection)
        finally:
            await connection.close()


@pytest_asyncio.fixture
async def stranger(own_postgres: PostgresServer, own_database: Database) -> AsyncIterator[Stranger]:
    owner = urlsplit(own_database.url)
    administrator = await asyncpg.connect(own_postgres.url(own_database.name, superuser=True))
    await administrator.execute("create role stranger login password 'stranger'")
    url = owner._replace(netloc=f"stranger:stranger@{owner.hostname}:{owner.port}").geturl()
    try:
        yield Stranger(
            url, administrator, own_database, await administrator.fetchval("select quote_ident(current_user)")
        )
    finally:
        await administrator.execute("reassign owned by stranger to inbox; drop owned by stranger; drop role stranger")
        await administrator.close()


@asynccontextmanager
async def seen_by(stranger: Stranger) -> AsyncIterator[Database]:
    """The database on connections of the role."""
    database = Database(stranger.url)
    try:
        yield database
    finally:
        await database.close()


READS = ("grant usage on schema inbox to stranger", "grant select on all tables in schema inbox to stranger")


async def test_what_the_refusal_asks_for_is_all_that_a_fleet_needs(stranger: Stranger) -> None:
    await stranger.grant(*await stranger.lacks())
    await stranger.lacks_nothing()
    await stranger.grant(DDL, "grant insert on ledger to stranger")
    async with seen_by(stranger) as database, process_on(database, "lanes") as one:
        assert await one.attempt(message(), Handler()) == Processed(1)
        failed = await one.attempt(message("m-2"), Handler(ValueError("no"), message_id="m-2"))
        assert isinstance(failed, Waiting)
        assert await one.attempt(message("m-2"), Handler(message_id="m-2"), redelivered=True) == Processed(2)
        async with one.housekeeping.acquire() as connection:
            assert await ensure(connection, retention_s=365 * 86_400.0)


async def test_a_role_that_may_only_read_is_told_whose_member_it_has_to_be(stranger: Stranger) -> None:
    await stranger.grant(*READS)
    # The owner's privileges come with it, so none of them is asked for besides.
    assert await stranger.lacks() == ("GRANT inbox TO stranger",)


async def test_what_the_owner_itself_lacks_is_asked_for_too(stranger: Stranger) -> None:
    await stranger.grant(
        "grant inbox to stranger",
        "alter table inbox.member owner to postgres",
        "alter table inbox.duty owner to postgres",
        "alter table inbox.attempt owner to postgres",
        "grant select, delete on inbox.attempt to inbox",
        "alter table inbox.migration owner to postgres",
        "alter schema inbox owner to postgres",
        "revoke execute on all routines in schema inbox from public, inbox",
        "grant usage on schema inbox to inbox",
    )
    everything = "SELECT, INSERT, UPDATE, DELETE"
    assert await stranger.lacks() == (
        "GRANT CREATE ON SCHEMA inbox TO stranger",
        "GRANT INSERT, UPDATE ON inbox.attempt TO stranger",
        # A fleet only reads which migrations are applied.
        "GRANT SELECT ON inbox.migration TO stranger",
        f"GRANT {everything} ON inbox.duty, inbox.member TO stranger",
        "GRANT EXECUTE ON ALL ROUTINES IN SCHEMA inbox TO stranger",
    )
    await stranger.grant(*await stranger.lacks())
    await stranger.lacks_nothing()


async def test_a_member_that_does_not_inherit_is_told_so(stranger: Stranger) -> None:
    await stranger.grant("alter role stranger noinherit", "grant inbox to stranger")
    (asked,) = await stranger.lacks()
    assert "INHERIT" in asked
    await stranger.grant(asked)
    await stranger.lacks_nothing()


MADE_BY_A_SUPERUSER = """
create role {owner};
alter schema inbox owner to {owner};
do $$ declare change text; begin
    for change in select format('alter table %s owner to {owner}', oid::regclass) from pg_class
                   where relnamespace = 'inbox'::regnamespace and relkind in ('r', 'p')
    loop execute change; end loop;
end $$
"""


@pytest_asyncio.fixture
async def powerful(stranger: Stranger) -> AsyncIterator[str]:
    """A role that owns what a migration has made, and is a member of a superuser."""
    role = "powerful"
    await stranger.grant(MADE_BY_A_SUPERUSER.format(owner=role), f"grant {stranger.superuser} to {role}")
    yield role
    await stranger.grant(f"reassign owned by {role} to inbox; drop owned by {role}; drop role {role}")


async def test_nobody_is_told_to_become_a_member_of_a_superuser(stranger: Stranger, powerful: str) -> None:
    for made_member in (False, True):
        if made_member:  # without what comes with it, so that it is refused all the same
            await stranger.grant("alter role stranger noinherit", f"grant {powerful} to stranger")
        refusal = await stranger.refusal()
        assert str(refusal).endswith("let a superuser run: CALL inbox.hand_over('stranger')")


async def test_what_a_superuser_has_made_is_handed_over_so_that_the_role_can_run_and_migrate(
    stranger: Stranger, powerful: str
) -> None:
    await stranger.grant(*await stranger.lacks())
    await stranger.lacks_nothing()
    others = """
        select count(*) from (
            select relowner as owner from pg_class
             where relnamespace = 'inbox'::regnamespace and relkind in ('r', 'p', 'S')
             union all select proowner from pg_proc where pronamespace = 'inbox'::regnamespace
             union all select nspowner from pg_namespace where nspname = 'inbox') owned
         where owner <> 'stranger'::regrole
    """
    assert await stranger.administrator.fetchval(others) == 0
    assert await migrate(stranger.url) == []
    connection = await asyncpg.connect(stranger.url)
    try:
        assert await ensure(connection, retention_s=365 * 86_400.0)
    finally:
        await connection.close()


async def test_who_may_grant_a_membership_is_said_since_the_owner_may_not(stranger: Stranger) -> None:
    assert "let a superuser, or a role with ADMIN OPTION on the one that is granted, run: GRANT inbox TO stranger" in (
        str(await stranger.refusal())
    )
    if stranger.administrator.get_server_version().major >= 16:
        owner = await stranger.database.connect()
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await owner.execute("grant inbox to stranger")


async def test_who_owns_the_schema_may_grant_what_is_in_it(stranger: Stranger) -> None:
    await stranger.grant("grant inbox to stranger", "revoke create on schema inbox from inbox")
    refusal = await stranger.refusal()
    assert "let a superuser, or who owns it, run: GRANT CREATE ON SCHEMA inbox TO stranger" in str(refusal)
    await stranger.database.execute("; ".join(refusal.grants))
    await stranger.lacks_nothing()


async def test_a_role_that_may_not_see_which_migrations_are_applied_is_told_what_that_takes(
    stranger: Stranger,
) -> None:
    for granted in (None, "grant usage on schema inbox to stranger"):
        if granted is not None:
            await stranger.grant(granted)
        with pytest.raises(PrivilegesMissing, match="to see which migrations are applied") as refused:
            await pending(stranger.url)
        assert ("GRANT USAGE ON SCHEMA inbox TO stranger" in refused.value.grants) == (granted is None)
        assert refused.value.grants[-1] == "GRANT SELECT ON inbox.migration TO stranger"
        assert "inbox-fleet migrate" not in str(refused.value)
    await stranger.database.execute("; ".join(refused.value.grants))
    assert await pending(stranger.url) == []


@pytest.mark.parametrize("command", ["run", "check"])
async def test_a_start_under_a_role_that_may_only_read_ends_by_name(
    tmp_path: Path, stranger: Stranger, command: str
) -> None:
    await stranger.grant(*READS)
    (tmp_path / "role_handlers.py").write_text(HANDLERS)
    write_config(tmp_path, consumers=CONSUMERS)
    ended = await inbox_fleet(command, folder=tmp_path, environ={"DATABASE_URL": stranger.url, "AMQP_URL": NOBODY})
    # Of what is wrong for `check`, a broker that is not there is the gravest.
    assert ended.code == (Exit.PRECONDITION if command == "run" else Exit.UNREACHABLE)
    assert "GRANT inbox TO stranger" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    assert await stranger.database.fetchval("select count(*) from inbox.member") == 0


async def test_a_session_that_may_not_write_is_waited_for(tmp_path: Path, database: Database) -> None:
    consumers = {"work": {"queue": "work", "handler": "tests.support.behaviours:work"}}
    config = load(write_config(tmp_path, consumers=consumers), needs=())
    await database.execute(f"alter database {database.name} set default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        await startup.verify_database(plan(config), Secret(database.url, origin="the test"))
