"""`inbox-fleet run` against real servers: what ends a start by name, and how a process ends in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.cli.exits import Exit
from tests.support.command import Finished, inbox_fleet
from tests.support.configs import write_config
from tests.support.databases import Database
from tests.support.vhosts import Vhost

HANDLERS = """
from consumers import Consumer

class Client: ...

orders = Consumer("orders")

@orders.on("order.placed")
async def handle(envelope, tx, client: Client): ...

@orders.lifespan
async def something():  # what it yields is seen when it is opened
    yield
"""
CONSUMERS: dict[str, dict[str, Any]] = {"orders": {"queue": "orders", "handler": "run_handlers:orders"}}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "run_handlers.py").write_text(HANDLERS)
    write_config(tmp_path, consumers=CONSUMERS)
    return tmp_path


async def run(folder: Path, database: Database, vhost: Vhost, *, applied: bool = True) -> Finished:
    environ = {"DATABASE_URL": database.url, "AMQP_URL": vhost.url}
    if applied:
        assert (await inbox_fleet("topology", "apply", folder=folder, environ=environ)).code == Exit.OK
    return await inbox_fleet("run", folder=folder, environ=environ)


async def test_a_database_that_was_not_migrated_ends_the_start(
    fleet: Path, empty_database: Database, vhost: Vhost
) -> None:
    ended = await run(fleet, empty_database, vhost)
    assert ended.code == Exit.PRECONDITION
    assert "inbox-fleet migrate" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_missing_queue_ends_the_start(fleet: Path, database: Database, vhost: Vhost) -> None:
    ended = await run(fleet, database, vhost, applied=False)
    assert ended.code == Exit.PRECONDITION
    assert "queue orders is missing" in ended.stderr
    assert "inbox-fleet topology apply" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_pools_over_budget_end_the_start(fleet: Path, database: Database, vhost: Vhost) -> None:
    write_config(fleet, consumers=CONSUMERS, tables={"service": {"replicas": 1000}})
    ended = await run(fleet, database, vhost)
    assert ended.code == Exit.PRECONDITION
    assert "orders 5" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_resource_that_nobody_provides_ends_the_start(fleet: Path, database: Database, vhost: Vhost) -> None:
    ended = await run(fleet, database, vhost)
    assert ended.code == Exit.USAGE
    assert "no lifespan provides run_handlers.Client" in ended.stderr
    assert "run_handlers.py:8" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_lifespan_that_fails_ends_the_start_and_closes_the_others(
    fleet: Path, database: Database, vhost: Vhost
) -> None:
    lifespans = """
@orders.lifespan
async def client():
    yield Client()
    open("closed", "w").close()

@orders.lifespan
async def broken():
    raise ConnectionRefusedError("nobody listens")
    yield
"""
    (fleet / "run_handlers.py").write_text(HANDLERS + lifespans)
    ended = await run(fleet, database, vhost)
    assert ended.code == Exit.FAILED
    assert "lifespan run_handlers:broken" in ended.stderr
    assert "nobody listens" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (fleet / "closed").exists()
