"""The whole service on every version of PostgreSQL that is installed, sessions lost under load included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from servers.postgres import installed
from tests.support.cleaning import never_waited
from tests.support.databases import Database, Databases
from tests.support.eventually import eventually
from tests.support.inboxes import process_on
from tests.support.ledger import create_ledger
from tests.support.process import StartFleet
from tests.support.servers import Run
from tests.support.service import Service
from tests.support.vhosts import Vhost


@pytest_asyncio.fixture(params=sorted(installed()))
async def versioned(request: pytest.FixtureRequest, run: Run, worker: str) -> AsyncIterator[tuple[int, Database]]:
    """A database on a server of each installed version."""
    pair = run.own(f"{worker}-service-{request.param}")
    server = await asyncio.to_thread(pair.start_postgres, str(request.param))
    databases = Databases(server.url(), run_directory=pair.directory, run_id=run.id, worker=worker)
    async with databases.database() as made:
        yield request.param, made
    await asyncio.to_thread(pair.remove)


async def test_the_service_works_and_its_sessions_end_by_themselves(
    versioned: tuple[int, Database], tmp_path: Path, vhost: Vhost, fleet: StartFleet
) -> None:
    version, database = versioned
    service = Service(tmp_path, database, vhost, fleet)
    await service.prepare()
    await database.execute("create table told (version integer, transaction_timeout text)")
    process = await service.start()
    ids = [f"message-{number}" for number in range(60)]
    await service.publish(*ids, copies=2, sql_sleep_s=0.05)
    await eventually(lambda: len(service.calls()) > 10, 20, what="work going on")
    assert await database.terminate_sessions() > 0
    await service.publish("failing", fail_in=[1])
    await service.publish("poison", fail_in=[-1])
    await service.publish("refused", reject="never")
    ask = "insert into told values (current_setting('server_version_num')::integer / 10000, %s)"
    await service.publish("asking", sql=ask % "current_setting('transaction_timeout', true)")
    await service.settled()
    await service.exact([*ids, "failing", "asking"], terminal={"poison": "exhausted", "refused": "rejected"})
    # Older servers do not know this setting, and would refuse a connection that names it.
    [told] = await database.fetch("select * from told")
    assert tuple(told) == (version, "30s" if version >= 17 else None)
    await service.stopped(process)
    await service.at_rest()


async def test_receipts_are_removed_under_long_attempts_and_no_claim_waits(versioned: tuple[int, Database]) -> None:
    _, database = versioned
    await create_ledger(database)
    async with process_on(database, "lanes") as one:
        await never_waited(database, one)
