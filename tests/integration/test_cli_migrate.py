"""`inbox-fleet migrate` against a real server."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from consumers.cli.exits import Exit
from inbox import migrations
from servers import PostgresServer
from tests.support.command import Finished, inbox_fleet
from tests.support.configs import write_config
from tests.support.databases import Database

NAMES = [f"{migration.number:04d}_{migration.name}" for migration in migrations()]


async def migrate(folder: Path, database: Database, *options: str) -> Finished:
    write_config(folder, consumers={"orders": {"queue": "orders", "handler": "nowhere:orders"}})
    return await inbox_fleet("migrate", *options, folder=folder, environ={"DATABASE_URL": database.url})


async def test_an_empty_database_is_migrated_once(tmp_path: Path, empty_database: Database) -> None:
    first = await migrate(tmp_path, empty_database)
    assert (first.code, first.stdout.splitlines()) == (Exit.OK, [f"applied {name}" for name in NAMES])
    second = await migrate(tmp_path, empty_database)
    assert (second.code, second.stdout) == (Exit.OK, "")
    assert "up to date" in second.stderr


async def test_checking_changes_nothing_and_says_what_is_pending(tmp_path: Path, empty_database: Database) -> None:
    before = await migrate(tmp_path, empty_database, "--check")
    assert (before.code, before.stdout.splitlines()) == (Exit.PRECONDITION, [f"pending {name}" for name in NAMES])
    assert await empty_database.fetchval("select count(*) from pg_namespace where nspname = 'inbox'") == 0
    await migrate(tmp_path, empty_database)
    after = await migrate(tmp_path, empty_database, "--check")
    assert (after.code, after.stdout) == (Exit.OK, "")


async def test_several_migrations_at_once_apply_each_file_once(tmp_path: Path, empty_database: Database) -> None:
    done = await asyncio.gather(*(migrate(tmp_path, empty_database) for _ in range(3)))
    assert [finished.code for finished in done] == [Exit.OK] * 3
    assert sorted(line for finished in done for line in finished.stdout.splitlines()) == [
        f"applied {name}" for name in sorted(NAMES)
    ]


async def test_a_schema_of_a_later_build_is_refused(tmp_path: Path, database: Database) -> None:
    await database.execute("insert into inbox.migration (number, name, checksum) values (9999, 'later', 'x')")
    for options in ((), ("--check",)):
        refused = await migrate(tmp_path, database, *options)
        assert refused.code == Exit.PRECONDITION
        assert "9999" in refused.stderr
        assert "Traceback" not in refused.stderr


async def test_a_schema_of_somebody_else_is_refused_with_what_to_do(tmp_path: Path, empty_database: Database) -> None:
    await empty_database.execute("create schema inbox; create table inbox.letters (id integer)")
    for options in ((), ("--check",)):
        refused = await migrate(tmp_path, empty_database, *options)
        assert (refused.code, refused.stdout) == (Exit.PRECONDITION, "")
        assert "rename it, or use another database" in refused.stderr
        assert "Traceback" not in refused.stderr


async def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Bound and not listening, so that nobody can be there.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused = await migrate(tmp_path, Database(f"postgresql://app:hunter2@127.0.0.1:{port}/billing"))
    assert (refused.code, refused.stdout) == (Exit.UNREACHABLE, "")
    assert f"127.0.0.1:{port}" in refused.stderr
    assert "DATABASE_URL" in refused.stderr
    assert "hunter2" not in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_a_database_that_does_not_exist_is_named(tmp_path: Path, database: Database) -> None:
    nowhere = Database(database.url.replace(f"/{database.name}", "/nowhere"))
    refused = await migrate(tmp_path, nowhere)
    assert refused.code == Exit.UNREACHABLE
    assert "nowhere" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_a_migration_that_the_server_refuses_is_named_with_what_the_server_says(
    tmp_path: Path, own_postgres: PostgresServer, own_database: Database
) -> None:
    await own_database.execute("drop schema inbox cascade")
    administrator = await asyncpg.connect(own_postgres.url(own_database.name, superuser=True))
    try:
        await administrator.execute(
            """
            create function public.forbid() returns event_trigger language plpgsql
                as $$ begin raise exception 'tables are made by the operators' using errcode = 'PX001'; end $$;
            create event trigger forbidden on ddl_command_start when tag in ('CREATE TABLE')
                execute function public.forbid()
            """
        )
        refused = await migrate(tmp_path, own_database)
    finally:
        await administrator.execute("drop event trigger if exists forbidden")
        await administrator.close()
    assert (refused.code, refused.stdout) == (Exit.FAILED, "")
    (line,) = refused.stderr.splitlines()
    assert f"migration {NAMES[0]} failed with SQLSTATE PX001: tables are made by the operators" in line
    assert "Nothing of it was applied" in line
    assert (await migrate(tmp_path, own_database)).code == Exit.OK


async def test_a_check_without_rights_is_told_what_it_takes_and_not_to_migrate(
    tmp_path: Path, own_postgres: PostgresServer, own_database: Database
) -> None:
    administrator = await asyncpg.connect(own_postgres.url(own_database.name, superuser=True))
    await administrator.execute("create role looker login password 'looker'")
    try:
        owner = urlsplit(own_database.url)
        url = owner._replace(netloc=f"looker:looker@{owner.hostname}:{owner.port}").geturl()
        refused = await migrate(tmp_path, Database(url), "--check")
        assert (refused.code, refused.stdout) == (Exit.PRECONDITION, "")
        asked = "GRANT USAGE ON SCHEMA inbox TO looker; GRANT SELECT ON inbox.migration TO looker"
        assert refused.stderr.strip().endswith(f"run: {asked}")
        await own_database.execute(asked)
        assert (await migrate(tmp_path, Database(url), "--check")).code == Exit.OK
    finally:
        await administrator.execute("drop owned by looker; drop role looker")
        await administrator.close()
