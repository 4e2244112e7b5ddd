"""Pools on every version of the server that is installed, and with a superuser's session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pools import SESSION_RESET
from servers.postgres import installed
from tests.support.leaks import FOLDABLE, PREPARATION, SUPERUSERS, UNFOLDABLE, answer_like_new, leave
from tests.support.pools import open_pool, session
from tests.support.servers import Run


@pytest_asyncio.fixture(params=sorted(installed()))
async def version_and_url(request: pytest.FixtureRequest, run: Run, worker: str) -> AsyncIterator[tuple[int, str]]:
    """A server of each installed version, and its superuser's URL."""
    pair = run.own(f"{worker}-version-{request.param}")
    server = await asyncio.to_thread(pair.start_postgres, str(request.param))
    yield request.param, server.url("postgres", superuser=True)
    await asyncio.to_thread(pair.remove)


async def test_each_version_is_told_what_it_knows_and_every_session_is_like_new(
    version_and_url: tuple[int, str],
) -> None:
    version, url = version_and_url
    settings = session(transaction_timeout_s=61.0)
    async with open_pool(url, lanes=1, session=settings) as pool:
        for _ in range(2):
            checkout = await pool.checkout()
            told = settings.server_settings(version * 10_000) | {"application_name": "shop-lanes"}
            assert ("transaction_timeout" in told) is (version >= 17)
            for name, value in told.items():
                assert await _setting(checkout.connection, name) == value
            checkout.terminate()

        kinds = FOLDABLE | SUPERUSERS | UNFOLDABLE
        for kind, leak in kinds.items():
            async with pool.acquire() as connection:
                await connection.execute(PREPARATION)
            like_new = await answer_like_new(pool, leak)
            dirty = await leave(pool, leak)
            async with pool.acquire() as connection:
                assert await connection.fetchval(leak.look) == like_new, kind

            if kind in UNFOLDABLE:
                continue
            dirty = await leave(pool, leak)
            checkout = await pool.checkout(folds_reset=True)
            assert checkout.pid == dirty.pid
            await checkout.connection.execute(f"{SESSION_RESET};BEGIN ISOLATION LEVEL READ COMMITTED")
            assert await checkout.connection.fetchval(leak.look) == like_new, kind
            await checkout.connection.execute("ROLLBACK")
            assert await checkout.connection.fetchval(leak.look) == like_new, kind
            await checkout.release()


async def _setting(connection: asyncpg.Connection, name: str) -> object:
    return await connection.fetchval("select setting from pg_settings where name = $1", name)
