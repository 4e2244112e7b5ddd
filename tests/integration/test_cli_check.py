"""`inbox-fleet check` against real servers: the gravest finding decides, and nothing is changed."""

from __future__ import annotations

import json
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

orders = Consumer("orders")

@orders.on("order.placed")
async def handle(envelope, tx): ...
"""
CONSUMERS: dict[str, dict[str, Any]] = {"orders": {"queue": "orders", "handler": "check_handlers:orders"}}
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "check_handlers.py").write_text(HANDLERS)
    write_config(tmp_path, consumers=CONSUMERS)
    return tmp_path


async def checked(folder: Path, database_url: str, amqp_url: str) -> tuple[int, dict[str, str], str]:
    """Return the exit code, the status of each check, and all of stdout."""
    environ = {"DATABASE_URL": database_url, "AMQP_URL": amqp_url}
    done = await inbox_fleet("check", "--output", "json", folder=folder, environ=environ)
    answer = json.loads(done.stdout)
    assert done.code == answer["exit_code"]
    assert answer["ok"] is (done.code == Exit.OK)
    assert answer["configuration"]["consumers"]["orders"]["queue"] == "orders"
    assert done.stderr == ""
    return done.code, {each["check"]: each["status"] for each in answer["checks"]}, done.stdout


async def apply(folder: Path, vhost: Vhost) -> Finished:
    return await inbox_fleet("topology", "apply", folder=folder, environ={"AMQP_URL": vhost.url})


async def test_a_fleet_that_could_start_is_well(fleet: Path, database: Database, vhost: Vhost) -> None:
    await apply(fleet, vhost)
    code, status, _ = await checked(fleet, database.url, vhost.url)
    names = ("configuration", "database", "schema and settings", "connections", "broker", "topology")
    assert (code, status) == (Exit.OK, dict.fromkeys(names, "ok"))


async def test_what_is_missing_on_both_sides_is_said_at_once(
    fleet: Path, empty_database: Database, vhost: Vhost
) -> None:
    code, status, text = await checked(fleet, empty_database.url, vhost.url)
    assert code == Exit.PRECONDITION
    assert status == {
        "configuration": "ok",
        "database": "ok",
        "schema and settings": "unfit",
        "connections": "not checked",
        "broker": "ok",
        "topology": "unfit",
    }
    assert "inbox-fleet migrate" in text
    assert "queue orders is missing" in text
    assert await empty_database.fetchval("select count(*) from pg_namespace where nspname = 'inbox'") == 0


async def test_a_server_that_is_not_there_is_graver_than_one_that_does_not_fit(
    fleet: Path, empty_database: Database, vhost: Vhost
) -> None:
    code, status, text = await checked(fleet, f"postgresql://app:hunter2@{NOWHERE}/x", vhost.url)
    assert (code, status["database"], status["topology"]) == (Exit.UNREACHABLE, "unreachable", "unfit")
    assert status["schema and settings"] == status["connections"] == "not checked"
    assert "hunter2" not in text
    code, status, text = await checked(fleet, empty_database.url, f"amqp://app:hunter2@{NOWHERE}/x")
    assert (code, status["broker"], status["topology"]) == (Exit.UNREACHABLE, "unreachable", "not checked")
    assert status["schema and settings"] == "unfit"
    assert "hunter2" not in text


async def test_pools_over_budget_are_named(fleet: Path, database: Database, vhost: Vhost) -> None:
    await apply(fleet, vhost)
    write_config(fleet, consumers=CONSUMERS, tables={"service": {"replicas": 1000}})
    code, status, text = await checked(fleet, database.url, vhost.url)
    assert (code, status["connections"], status["topology"]) == (Exit.PRECONDITION, "unfit", "ok")
    assert "orders 5, housekeeping 2" in text


async def test_settings_that_lose_commits_are_refused(fleet: Path, database: Database, vhost: Vhost) -> None:
    await database.execute(f'alter database "{database.name}" set synchronous_commit = off')
    code, status, text = await checked(fleet, database.url, vhost.url)
    assert (code, status["schema and settings"]) == (Exit.PRECONDITION, "unfit")
    assert "synchronous_commit" in text


async def test_the_table_has_one_line_for_each_check(fleet: Path, database: Database, vhost: Vhost) -> None:
    await apply(fleet, vhost)
    environ = {"DATABASE_URL": database.url, "AMQP_URL": vhost.url}
    done = await inbox_fleet("check", folder=fleet, environ=environ)
    assert done.code == Exit.OK
    lines = [line for line in done.stdout.splitlines() if " ok " in line]
    assert [line.split("  ")[0].strip() for line in lines] == [
        "configuration",
        "database",
        "schema and settings",
        "connections",
        "broker",
        "topology",
    ]


async def test_configuration_and_handlers_come_first(fleet: Path) -> None:
    environ = {"DATABASE_URL": f"postgresql://{NOWHERE}/x", "AMQP_URL": f"amqp://{NOWHERE}/x"}
    (fleet / "check_handlers.py").write_text(HANDLERS.replace("tx", "*tx"))
    done = await inbox_fleet("check", "--output", "json", folder=fleet, environ=environ)
    assert (done.code, done.stdout) == (Exit.USAGE, "")
    assert "check_handlers.py:6" in done.stderr


ASKING = """
from collections.abc import AsyncIterator
from consumers import Consumer

class Client: ...

orders = Consumer("orders")

@orders.on("order.placed")
async def handle(envelope, tx, client: Client): ...

@orders.lifespan
async def client():
    open("opened", "w").close()
    yield Client()
"""


async def test_what_a_lifespan_does_not_name_is_said_to_be_seen_at_a_start_alone(
    fleet: Path, database: Database, vhost: Vhost
) -> None:
    (fleet / "check_handlers.py").write_text(ASKING)
    await apply(fleet, vhost)
    code, status, text = await checked(fleet, database.url, vhost.url)
    assert (code, status["resources"]) == (Exit.OK, "not checked")
    assert "parameter client of check_handlers:handle (check_handlers.py:9)" in text
    (fleet / "check_handlers.py").write_text(ASKING.replace("def client()", "def client() -> AsyncIterator[Client]"))
    code, status, _ = await checked(fleet, database.url, vhost.url)
    assert code == Exit.OK and "resources" not in status
    assert not (fleet / "opened").exists()
