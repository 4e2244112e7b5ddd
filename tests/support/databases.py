"""A database for each test, copied from a template in which the product's migrations are applied.

Copying takes some 30 ms and leaves nothing to clean between tests. The template is made once per server and run.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg


class Database:
    """One test's own database.

    `fetch`, `fetchval` and `execute` run on a connection of the test, apart from the product's. `application_name` of
    that connection is `test`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = urlsplit(url).path.removeprefix("/")
        self._connections: list[asyncpg.Connection[Any]] = []
        self._own: asyncpg.Connection[Any] | None = None

    async def connect(self, **settings: str) -> asyncpg.Connection[Any]:
        """Open another connection, closed at the end of the test. `settings` are server settings."""
        connection = await asyncpg.connect(self.url, server_settings={"application_name": "test", **settings})
        self._connections.append(connection)
        return connection

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return all rows of a query."""
        return await (await self._connection()).fetch(query, *arguments)

    async def fetchrow(self, query: str, *arguments: object) -> asyncpg.Record | None:
        """Return the first row of a query, or None."""
        return await (await self._connection()).fetchrow(query, *arguments)

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """Return the first value of the first row, or None."""
        return await (await self._connection()).fetchval(query, *arguments)

    async def execute(self, query: str, *arguments: object) -> str:
        """Execute a command and return its tag."""
        return await (await self._connection()).execute(query, *arguments)

    async def sessions(self, application_name: str | None = None) -> list[asyncpg.Record]:
        """Return pid, application_name, state, wait_event_type and query of this database's other client sessions."""
        return await self.fetch(
            "select pid, application_name, state, wait_event_type, query from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' "
            "and ($1::text is null or application_name = $1) order by backend_start",
            application_name,
        )

    async def terminate_sessions(self, application_name: str | None = None) -> int:
        """End this database's other sessions (of one application) and return how many there were."""
        ended = await self.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and ($1::text is null or application_name = $1)",
            application_name,
        )
        return len(ended)

    async def close(self) -> None:
        """Close the test's connections without asking the server, which may be gone."""
        for connection in self._connections:
            connection.terminate()

    async def _connection(self) -> asyncpg.Connection[Any]:
        # A test that restarts the server asks it again afterwards.
        if self._own is None or self._own.is_closed():
            self._own = await self.connect()
        return self._own


class Databases:
    """Makes databases on one server.

    Args:
        url: URL of a database of that server whose role may create databases.
        run: Folder and name of the run that the template belongs to.
    """

    def __init__(self, url: str, *, run_directory: Path, run_id: str, worker: str) -> None:
        self._url = url
        self._template = _template(run_id)
        self._lock = run_directory / f"{urlsplit(url).port}.template.lock"
        self._names = (f"inbox_{run_id}_{worker}_{number}" for number in itertools.count())

    @asynccontextmanager
    async def database(self, *, migrated: bool = True) -> AsyncIterator[Database]:
        """Make a database, with the product's schema or empty; drop it however many sessions are still in it."""
        if migrated:
            await self._ensure_template()
        name = next(self._names)
        await _administer(self._url, f"create database {name} template {self._template if migrated else 'template1'}")
        database = Database(self._named(name))
        try:
            yield database
        finally:
            await database.close()
            await _administer(self._url, f"drop database {name} with (force)")

    async def _ensure_template(self) -> None:
        with self._lock.open("a+") as made:
            fcntl.flock(made, fcntl.LOCK_EX)
            made.seek(0)
            if made.read():
                return
            await _administer(self._url, f"create database {self._template}")
            import inbox  # the product itself must not be needed where no database is

            await inbox.migrate(self._named(self._template))
            sealed = f"alter database {self._template} with is_template true allow_connections false"
            await _administer(self._url, sealed)
            made.write(self._url)

    def _named(self, name: str) -> str:
        return urlsplit(self._url)._replace(path=f"/{name}").geturl()


def servers_with_template(run_directory: Path) -> list[str]:
    """Return the URLs of the servers on which a run has made its template."""
    return [url for lock in run_directory.glob("*.template.lock") if (url := lock.read_text(encoding="utf-8"))]


async def drop_templates(urls: list[str], run_id: str) -> None:
    """Drop a run's templates, for servers that outlive the run; one that is gone took its template along."""
    for url in urls:
        with contextlib.suppress(OSError):
            await _administer(url, f"alter database {_template(run_id)} is_template false")
            await _administer(url, f"drop database {_template(run_id)} with (force)")


def _template(run_id: str) -> str:
    return f"inbox_template_{run_id}"


async def _administer(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        connection.terminate()
