"""The schema goes forward only, once, and a process starts on the one that its build knows."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from inbox import (
    MigrationChanged,
    MigrationFailed,
    SchemaBusy,
    SchemaDenied,
    SchemaForeign,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    UnsafeServer,
    check_server,
    migrate,
    migrations,
    pending,
)
from inbox.migrate import Migration
from inbox.queries import _all as all_queries
from inbox.server_checks import check_server as check
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.relay import RelayBefore
from tests.support.servers import Run

KNOWN = migrations()
NEXT = Migration(KNOWN[-1].number + 1, "next", "create table inbox.next (id integer)")
LAST = Migration(KNOWN[-1].number + 2, "last", "create table inbox.last (id integer); select 1 / 0")
MIGRATION_LOCK = 7310866436


def build_with(monkeypatch: pytest.MonkeyPatch, *more: Migration) -> None:
    """Let this be a build with further migrations."""
    monkeypatch.setattr(importlib.import_module("inbox.migrate"), "migrations", lambda: (*KNOWN, *more))


async def applied(database: Database) -> list[int]:
    return [row["number"] for row in await database.fetch("select number from inbox.migration order by number")]


# Applying.


async def test_a_migration_is_applied_once_and_remembered_with_its_checksum(empty_database: Database) -> None:
    assert await migrate(empty_database.url) == list(KNOWN)
    assert await migrate(empty_database.url) == []
    rows = await empty_database.fetch("select number, name, checksum from inbox.migration order by number")
    assert [tuple(row) for row in rows] == [(known.number, known.name, known.checksum) for known in KNOWN]


async def test_a_later_build_applies_only_what_is_new(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    build_with(monkeypatch, NEXT)
    assert await pending(database.url) == [NEXT]
    assert await migrate(database.url) == [NEXT]
    assert await pending(database.url) == []
    assert await database.fetchval("select to_regclass('inbox.next') is not null")


async def test_a_migration_that_fails_leaves_nothing_of_itself_and_all_that_came_before(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_with(monkeypatch, NEXT, LAST)
    with pytest.raises(MigrationFailed, match=rf"migration {LAST.number:04d}_last .*22012: division by zero") as failed:
        await migrate(database.url)
    assert (failed.value.number, failed.value.sqlstate) == (LAST.number, "22012")
    assert await applied(database) == [*(known.number for known in KNOWN), NEXT.number]
    assert await database.fetchval("select to_regclass('inbox.last') is null")


async def test_migrations_at_the_same_time_apply_each_file_once(empty_database: Database) -> None:
    done = await asyncio.gather(*(migrate(empty_database.url) for _ in range(4)))
    assert sorted(len(each) for each in done) == [0, 0, 0, len(KNOWN)]
    assert await applied(empty_database) == [known.number for known in KNOWN]


async def test_a_migration_that_never_ends_is_not_waited_for_without_limit(empty_database: Database) -> None:
    other = await empty_database.connect()
    await other.execute(f"select pg_advisory_lock({MIGRATION_LOCK})")
    with pytest.raises(SchemaBusy, match=r"still runs after 0\.3 s"):
        await migrate(empty_database.url, wait_s=0.3)
    assert await empty_database.fetchval("select to_regnamespace('inbox') is null")
    await other.execute(f"select pg_advisory_unlock({MIGRATION_LOCK})")
    assert await migrate(empty_database.url) == list(KNOWN)


async def test_a_migration_that_is_cut_off_in_the_middle_holds_nobody_up_and_left_nothing(
    empty_database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(empty_database.url)
    cut = relay.cut_on(b"insert into inbox.migration", Direction.TO_SERVER)
    with pytest.raises(ConnectionError, match="lost during a migration"):
        await migrate(relay.url(empty_database.url))
    assert cut.reached.is_set()

    async def free() -> bool:
        held = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database "
        return not await empty_database.fetchval(held + "where datname = current_database())")

    await eventually(free, what="the end of a migration's session")
    assert await empty_database.fetchval("select to_regnamespace('inbox') is null")
    assert await migrate(empty_database.url) == list(KNOWN)


async def test_a_role_that_may_not_migrate_is_told_so(empty_database: Database) -> None:
    role = await empty_database.fetchval("select current_user")
    await empty_database.execute(f"revoke create on database {empty_database.name} from {role}, public")
    with pytest.raises(SchemaDenied, match=f"role '{role}' may not migrate .*inbox-fleet migrate") as refused:
        await migrate(empty_database.url)
    assert "permission denied" in refused.value.problem
    assert await empty_database.fetchval("select to_regnamespace('inbox') is null")


# Checking.


async def test_a_database_without_the_schema_is_refused_by_name(empty_database: Database) -> None:
    with pytest.raises(SchemaMissing, match="inbox-fleet migrate") as refused:
        await check_server(await empty_database.connect())
    assert refused.value.needed == KNOWN[-1].number


async def test_a_schema_that_lacks_a_migration_is_refused_by_name(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_with(monkeypatch, NEXT)
    with pytest.raises(SchemaTooOld) as refused:
        await check_server(await database.connect())
    assert (refused.value.found, refused.value.needed) == (KNOWN[-1].number, NEXT.number)


async def test_a_schema_of_a_later_build_is_refused_and_not_migrated(database: Database) -> None:
    await database.execute("insert into inbox.migration (number, name, checksum) values (9999, 'later', 'x')")
    for asking in (check_server(await database.connect()), migrate(database.url), pending(database.url)):
        with pytest.raises(SchemaTooNew) as refused:
            await asking
        assert (refused.value.found, refused.value.known) == (9999, KNOWN[-1].number)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("delete from inbox.migration", "its record of migrations is empty"),
        ("drop table inbox.migration", "without this product's record"),
        ("alter table inbox.migration rename number to version", "without this product's record"),
        ("alter table inbox.migration alter number type text", "without this product's record"),
        ("drop schema inbox cascade; create schema inbox", "without this product's record"),
        ("delete from inbox.migration where number = 1", "lacks migration 0001"),
    ],
)
async def test_a_schema_that_is_not_known_to_be_ours_is_refused_and_left_alone(
    database: Database, found: str, problem: str
) -> None:
    await database.execute(found)
    tables = "select relname from pg_class where relnamespace = 'inbox'::regnamespace order by 1"
    before = await database.fetch(tables)
    for asking in (check_server(await database.connect()), migrate(database.url), pending(database.url)):
        with pytest.raises(SchemaForeign, match=problem):
            await asking
    assert await database.fetch(tables) == before


async def test_a_migration_that_was_changed_after_it_was_applied_is_refused_by_name(database: Database) -> None:
    await database.execute("update inbox.migration set checksum = 'another' where number = 1")
    for asking in (check_server(await database.connect()), migrate(database.url), pending(database.url)):
        with pytest.raises(MigrationChanged, match=f"0001_{KNOWN[0].name}"):
            await asking


async def test_a_checksum_is_of_every_character() -> None:
    assert Migration(1, "x", "select 1").checksum != Migration(1, "x", "select 1 ").checksum
    assert [known.number for known in KNOWN] == list(range(1, len(KNOWN) + 1))


# The server.


async def test_a_server_as_it_should_be_is_accepted(database: Database) -> None:
    for setting in ("on", "remote_write", "remote_apply"):
        await check_server(await database.connect(synchronous_commit=setting))


@pytest.mark.parametrize("setting", ["off", "local"])
async def test_a_session_whose_commits_a_crash_could_lose_is_refused(database: Database, setting: str) -> None:
    with pytest.raises(UnsafeServer, match=f"synchronous_commit = {setting}.* acked") as refused:
        await check_server(await database.connect(synchronous_commit=setting))
    assert (refused.value.setting, refused.value.value) == ("synchronous_commit", setting)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_could_lose_what_it_has_committed_is_refused(setting: str) -> None:
    class Server:
        """Answers as a server with this setting off; a real one would have to be restarted for it."""

        async def fetchrow(self, _: str) -> dict[str, Any]:
            safe = {"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on", "encoding": "UTF8"}
            return safe | {setting: "off"}

    with pytest.raises(UnsafeServer, match=f"{setting} = off, allowed is on"):
        await check(Server())  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def latin_database(run: Run, worker: str) -> AsyncIterator[str]:
    url = run.database_url()
    name = f"latin_{run.id}_{worker}"
    administrator = await asyncpg.connect(url)
    await administrator.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
    try:
        yield url.rpartition("/")[0] + f"/{name}"
    finally:
        await administrator.execute(f"drop database {name} with (force)")
        await administrator.close()


async def test_a_database_that_cannot_hold_every_text_is_refused(latin_database: str) -> None:
    connection = await asyncpg.connect(latin_database)
    try:
        with pytest.raises(UnsafeServer, match="encoding = LATIN1, allowed is UTF8"):
            await check_server(connection)
    finally:
        await connection.close()


# What is in the schema.


@pytest.mark.parametrize("name", sorted(all_queries()))
async def test_every_named_statement_is_one_that_the_server_understands(database: Database, name: str) -> None:
    connection = await database.connect()
    statement = await connection.prepare(all_queries()[name])
    assert statement.get_query() == all_queries()[name]


async def test_what_reads_after_the_lock_takes_a_new_snapshot_for_each_statement(database: Database) -> None:
    rows = await database.fetch(
        "select proname, provolatile::text from pg_proc where pronamespace = 'inbox'::regnamespace "
        "and proname in ('look', 'hold', 'start_attempt', 'record_outcome', 'settle_debt')"
    )
    assert {row["proname"]: row["provolatile"] for row in rows} == dict.fromkeys(
        ("look", "hold", "start_attempt", "record_outcome", "settle_debt"), "v"
    )


async def test_the_lock_of_a_key_is_the_same_on_every_server(database: Database) -> None:
    # Two processes of one fleet may reach two servers, before and after an upgrade: they must not miss each other.
    lock_id = await database.fetchval("select inbox.lock_id('00000000-0000-0000-0000-000000000001')")
    assert lock_id == 6516430781122604632
