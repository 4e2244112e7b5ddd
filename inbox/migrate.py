"""Forward-only migrations of the inbox schema.

Numbered files, each applied once in a transaction of its own, under an advisory lock that is polled (a waiting
session would hold a snapshot and block concurrent index builds). An applied file that changed is an error. A process
starts only on the schema that its build knows.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import asyncpg

from inbox import partitions
from inbox.errors import (
    MigrationChanged,
    MigrationFailed,
    PrivilegesMissing,
    SchemaBusy,
    SchemaDenied,
    SchemaForeign,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)
from inbox.queries import query
from inbox.redaction import without_secrets

_LOCK = 7310866436
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_CONNECT_TIMEOUT_S = 10.0
_POLL_S = 0.2
_LOCK_TIMEOUT = "5s"

DEFAULT_RETENTION_S = 30 * 86_400.0
DEFAULT_EVENTS_RETENTION_S = 3 * 86_400.0


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str = field(repr=False)

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's text."""
        return sha256(self.sql.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration of this build, oldest first."""
    found = []
    for file in (files("inbox") / "sql" / "migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match is not None:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))


async def migrate(
    dsn: str,
    *,
    retention_s: float = DEFAULT_RETENTION_S,
    events_retention_s: float = DEFAULT_EVENTS_RETENTION_S,
    wait_s: float = 60.0,
) -> list[Migration]:
    """Apply what is pending, make partitions of receipts and events, and return what was applied.

    :param retention_s: how long receipts are kept; decides how wide their new partitions are.
    :param events_retention_s: how long sent events are kept; the same for theirs.
    :param wait_s: how long to wait for another migration of the same database to end.
    :raises SchemaBusy: another migration still runs.
    :raises SchemaDenied: the role may not do it.
    :raises MigrationFailed: the server refused one of them, which is undone; those before it stay.
    :raises ConnectionError: the session was lost.
    :raises MigrationChanged: an applied file is not the one of this build.
    :raises SchemaTooNew: a later build has migrated this database.
    :raises SchemaForeign: there is a schema of that name without our record.
    """
    connection = await asyncpg.connect(dsn, timeout=_CONNECT_TIMEOUT_S, server_settings={"lock_timeout": _LOCK_TIMEOUT})
    try:
        await _lock(connection, wait_s)
        applied = []
        for migration in await _pending(connection):
            await _apply(connection, migration)
            applied.append(migration)
        await partitions.ensure(connection, partitions.RECEIPTS, retention_s=retention_s)
        await partitions.ensure(connection, partitions.EVENTS, retention_s=events_retention_s)
    except asyncpg.InterfaceError as error:
        if not connection.is_closed():
            raise
        # The driver's transaction block hides what happened to its connection.
        lost = "the session was lost during a migration, which undoes it: run it again"
        raise ConnectionResetError(lost) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise await _denied(connection, error) from error
    else:
        return applied
    finally:
        # The lock ends with the session.
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


async def _apply(connection: asyncpg.Connection[Any], migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            await connection.execute(query("note_migration"), migration.number, migration.name, migration.checksum)
    except asyncpg.InsufficientPrivilegeError:
        raise
    except asyncpg.PostgresError as error:
        if connection.is_closed():
            raise  # the session was lost: no word about the migration
        raise MigrationFailed(
            number=migration.number,
            name=migration.name,
            sqlstate=getattr(error, "sqlstate", None) or "unknown",
            problem=without_secrets("; ".join(str(error).splitlines())),
        ) from error


async def pending(dsn: str) -> list[Migration]:
    """Return the migrations that this database lacks.

    :raises PrivilegesMissing: the role may not read which are applied; names the statements that grant it.
    :raises MigrationChanged: an applied file is not the one of this build.
    :raises SchemaTooNew: a later build has migrated this database.
    :raises SchemaForeign: there is a schema of that name without our record.
    """
    connection = await asyncpg.connect(dsn, timeout=_CONNECT_TIMEOUT_S)
    try:
        return await _pending(connection)
    except SchemaDenied as denied:
        grants = [row["statement"] for row in await connection.fetch(query("missing_grants_to_see_migrations"))]
        if not grants:
            raise
        work = "what it takes to see which migrations are applied"
        raise PrivilegesMissing(role=denied.role, grants=grants, work=work) from denied
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


async def check_schema(connection: asyncpg.Connection[Any]) -> None:
    """Refuse to work on another schema than this build's.

    :raises SchemaMissing, SchemaTooOld, SchemaTooNew, SchemaForeign, MigrationChanged: see there what to do.
    :raises SchemaDenied: the role may not read which migrations are applied.
    """
    missing = await _pending(connection)
    if missing:
        known = migrations()
        if len(missing) == len(known):
            raise SchemaMissing(needed=known[-1].number)
        raise SchemaTooOld(found=missing[0].number - 1, needed=known[-1].number)


async def _pending(connection: asyncpg.Connection[Any]) -> list[Migration]:
    known = migrations()
    match await connection.fetchval(query("schema_standing")):
        case "missing":
            return list(known)
        case "foreign":
            raise SchemaForeign(problem="without this product's record of migrations")
    try:
        applied = {row["number"]: row for row in await connection.fetch(query("applied_migrations"))}
    except asyncpg.InsufficientPrivilegeError as error:
        raise await _denied(connection, error) from error
    if not applied:
        raise SchemaForeign(problem="its record of migrations is empty")
    if max(applied) > known[-1].number:
        raise SchemaTooNew(found=max(applied), known=known[-1].number)
    skipped = [migration for migration in known if migration.number not in applied and migration.number < max(applied)]
    if skipped:
        # They only go forward: what a later one has built on is not there, or is there without a record.
        raise SchemaForeign(problem=f"its record lacks migration {skipped[0].number:04d}, and has later ones")
    for migration in known:
        row = applied.get(migration.number)
        if row is not None and row["checksum"] != migration.checksum:
            raise MigrationChanged(number=migration.number, name=row["name"])
    return [migration for migration in known if migration.number not in applied]


async def _denied(connection: asyncpg.Connection[Any], error: asyncpg.InsufficientPrivilegeError) -> SchemaDenied:
    return SchemaDenied(role=await connection.fetchval(query("current_role")), problem=str(error))


async def _lock(connection: asyncpg.Connection[Any], wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            while not await connection.fetchval(query("try_migration_lock"), _LOCK):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise SchemaBusy(waited_s=wait_s) from None
