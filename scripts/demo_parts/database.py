"""The demo's own database: made for one run, filled by the fleet, counted, and dropped.

What became of the orders is read from the service's own table and from nowhere else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from deadlines import RunFailed

_CONNECT_S = 10.0
_ANSWER_S = 15.0


class DemoDatabase:
    """One database on the server behind a URL.

    Args:
        server_url: URL of any database of that server, with a role that may create databases.
        name: The new database's name.
    """

    def __init__(self, server_url: str, name: str) -> None:
        self.name = name
        self.url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
        self._server_url = server_url
        self._may_exist = False
        self._connection: asyncpg.Connection[Any] | None = None
        self._turn = asyncio.Lock()  # a connection answers one question at a time

    async def create(self, schema: str) -> None:
        """Create the database with the service's tables, from SQL text. Raises RunFailed."""
        try:
            await self._administer(f'create database "{self.name}"')
            self._connection = await asyncpg.connect(
                self.url, timeout=_CONNECT_S, command_timeout=_ANSWER_S, server_settings={"application_name": "demo"}
            )
            await self._connection.execute(schema)
        except asyncpg.InsufficientPrivilegeError as error:
            raise RunFailed(
                f"PostgreSQL: {error}. The demo makes a database of its own, so that it touches nothing of yours: "
                "`alter role … createdb`, or unset DATABASE_URL for a private server"
            ) from error
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            where = urlsplit(self.url).hostname or "its unix socket"
            raise RunFailed(f"PostgreSQL at {where}: {type(error).__name__}: {error}") from error

    async def effects(self) -> Counter[str]:
        """Return how many effects each order has."""
        rows = await self._ask("select order_id, count(*) as effects from placed_order group by order_id")
        return Counter({row["order_id"]: row["effects"] for row in rows})

    async def orders_with_effect(self) -> int:
        """Return how many different orders have an effect."""
        return int((await self._ask("select count(distinct order_id) from placed_order"))[0][0])

    async def have_effect(self, orders: Collection[str]) -> int:
        """Return how many of these orders have an effect."""
        query = "select count(distinct order_id) from placed_order where order_id = any ($1)"
        return int((await self._ask(query, list(orders)))[0][0])

    async def terminate_sessions(self, service: str) -> int:
        """End every session of one service in this database, as an administrator would, and return their number."""
        ended = await self._ask(
            "select pg_terminate_backend(pid) as ended from pg_stat_activity "
            "where datname = current_database() and starts_with(application_name, $1)",
            f"{service}-",
        )
        return sum(row["ended"] for row in ended)

    async def drop(self) -> None:
        """Drop the database with all sessions in it. Does nothing if it was not created. Raises RunFailed."""
        if not self._may_exist:
            return
        if self._connection is not None:
            self._connection.terminate()
        try:
            await self._administer(f'drop database if exists "{self.name}" with (force)')
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise RunFailed(f"the database {self.name} is left behind: {type(error).__name__}: {error}") from error

    async def _ask(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        assert self._connection is not None, "the database is created first"
        async with self._turn:
            return await self._connection.fetch(query, *arguments)

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self._server_url, timeout=_CONNECT_S, command_timeout=_ANSWER_S)
        self._may_exist = True
        try:
            await connection.execute(statement)
        finally:
            connection.terminate()
