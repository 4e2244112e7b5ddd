"""The private servers behind `scripts/services`, the demo and these tests."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from servers import Pair
from servers.postgres import installed
from tests.support.eventually import eventually
from tests.support.servers import CHECKOUT

ELSEWHERE = {"DATABASE_URL": "postgresql://u:p@elsewhere/db", "AMQP_URL": "amqp://u:p@elsewhere/%2F"}
Services = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def name() -> Iterator[str]:
    """A name for a pair of servers in this checkout, removed at the end."""
    chosen = f"test-{os.getpid()}"
    yield chosen
    Pair.named(CHECKOUT, chosen).remove()


@pytest.fixture
def services() -> Services:
    """Run the command with an environment of its own."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(CHECKOUT / "scripts" / "services.py"), *arguments]
        environment = {key: value for key, value in os.environ.items() if key not in ELSEWHERE} | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)

    return run


def test_urls_of_the_environment_win_and_nothing_is_started(name: str, services: Services) -> None:
    started = services("start", "--name", name, **ELSEWHERE)

    assert started.returncode == 0
    assert started.stdout.splitlines() == [f"{key}={value}" for key, value in ELSEWHERE.items()]
    assert "nothing is started" in started.stderr
    assert {path.name for path in (CHECKOUT / ".services" / name).iterdir()} == set()


def test_a_database_is_found_again_by_name_and_keeps_its_data(name: str, services: Services) -> None:
    broker = {"AMQP_URL": ELSEWHERE["AMQP_URL"]}
    url = services("start", "--name", name, **broker).stdout.splitlines()[0].removeprefix("DATABASE_URL=")
    asyncio.run(execute(url, "create table kept ()"))

    assert services("start", "--name", name, **broker).stdout.splitlines()[0] == f"DATABASE_URL={url}"
    assert f"export DATABASE_URL={url}" in services("env", "--name", name, **broker).stdout
    assert services("stop", "--name", name, **broker).returncode == 0
    stopped = services("status", "--name", name, **broker)
    assert (stopped.returncode, stopped.stdout) == (1, "")
    services("start", "--name", name, **broker)
    asyncio.run(execute(url, "drop table kept"))
    assert services("remove", "--name", name, **broker).returncode == 0
    assert not (CHECKOUT / ".services" / name / "postgres").exists()


def test_other_pairs_that_run_are_named_by_the_status(name: str, services: Services) -> None:
    broker = {"AMQP_URL": ELSEWHERE["AMQP_URL"]}
    services("start", "--name", name, **broker)

    other = services("status", "--name", f"{name}-other", **broker)
    assert other.returncode == 1
    assert re.search(rf"there run besides: .*\b{name}\b", other.stderr)
    assert "-other" not in next(line for line in other.stderr.splitlines() if "besides:" in line)
    own = services("status", "--name", name, **broker)
    assert own.stdout.startswith("DATABASE_URL=")
    assert not re.search(rf"besides: .*\b{name}\b", own.stderr)


@pytest.mark.parametrize(("command", "code"), [("status", 1), ("env", 1), ("stop", 0), ("remove", 0)])
def test_to_ask_about_a_pair_that_there_is_not_makes_none(services: Services, command: str, code: int) -> None:
    absent = f"absent-{os.getpid()}"

    asked = services(command, "--name", absent)

    assert (asked.returncode, asked.stdout) == (code, "")
    assert ("does not run" in asked.stderr) == (code == 1)
    assert not (CHECKOUT / ".services" / absent).exists()


@pytest.mark.parametrize("version", sorted(installed()))
def test_every_installed_version_of_the_database_starts(version: int) -> None:
    pair = Pair.temporary()
    try:
        server = pair.start_postgres(str(version))
        assert (
            asyncio.run(fetchval(server.url(), "select current_setting('server_version_num')::int / 10000")) == version
        )
    finally:
        pair.remove()


def test_an_unknown_version_is_refused_with_what_there_is(name: str, services: Services) -> None:
    refused = services("start", "--name", name, "--postgres", "7", AMQP_URL="amqp://elsewhere")

    assert refused.returncode == 1
    assert "no PostgreSQL 7 found (found: " in refused.stderr


async def test_servers_end_with_the_run_that_was_killed() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys; from tests.support.servers import Run; run = Run.begin(); run.own('x').start_postgres(); "
        "print(run.directory, flush=True); sys.stdin.read()",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "scripts")])},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    directory = Path((await asyncio.wait_for(owner.stdout.readline(), 60)).decode().strip())
    postgres = Pair(directory / "own-x").postgres
    assert postgres.process is not None

    owner.kill()
    await owner.wait()

    await eventually(lambda: postgres.process is None and not directory.exists(), 30)


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


async def fetchval(url: str, query: str) -> int:
    connection = await asyncpg.connect(url)
    value = await connection.fetchval(query)
    await connection.close()
    return int(value)
