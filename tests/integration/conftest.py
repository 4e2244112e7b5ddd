"""Processes of a fleet without a broker, on the test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from tests.support.databases import Database
from tests.support.inboxes import Process, StartProcess, at_rest, process_on
from tests.support.ledger import create_ledger


@pytest_asyncio.fixture
async def process(database: Database) -> AsyncIterator[StartProcess]:
    """`one = await process()`: a process start. After the test no lock and no open transaction may be left."""
    async with AsyncExitStack() as stack:
        await create_ledger(database)

        async def start(name: str = "lanes", **differences: Any) -> Process:
            return await stack.enter_async_context(process_on(database, name, **differences))

        yield start
        await at_rest(database)
