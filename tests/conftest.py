"""Fixtures of all tests: a database, a virtual host, relays, processes; and the servers behind them.

`database` and `vhost` live on servers that all tests share, so a test may do to them only what stays inside. A test
that stops, freezes or alarms a whole server takes `own_postgres`, `own_broker`, `own_database`, `own_vhost`: those
servers belong to one xdist worker alone and are healed after each test.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from servers import PostgresServer, RabbitServer
from servers.relay import Relay
from tests.support.databases import Database, Databases, drop_templates, servers_with_template
from tests.support.process import FleetProcess, StartFleet, start_fleet
from tests.support.relay import RelayBefore
from tests.support.servers import Run, heal_broker, heal_postgres
from tests.support.service import Service
from tests.support.vhosts import Vhost, vhost_on

RUN = pytest.StashKey[Run]()
_NUMBERS = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run every round of the tests that repeat a fault")


def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    run = Run.begin() if given is None else Run(Path(given["run_directory"]), given["run_owner"])
    config.stash[RUN] = run


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    run = node.config.stash[RUN]
    node.workerinput.update(run_directory=str(run.directory), run_owner=run.owner)


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(RUN, None)
    if run is not None and run.owner == os.getpid():
        asyncio.run(drop_templates(servers_with_template(run.directory), run.id))
        run.end()


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config) -> Run:
    """The servers of this test run."""
    return pytestconfig.stash[RUN]


@pytest.fixture(scope="session")
def worker() -> str:
    """The name of this xdist worker."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> Callable[[int, int], int]:
    """`rounds(3, 20)` is how often to repeat a fault: the first number in CI, the second with --full."""
    return lambda in_ci, full: full if pytestconfig.getoption("--full") else in_ci


@pytest.fixture(scope="session")
def databases(run: Run, worker: str) -> Databases:
    """Makes databases on the shared server."""
    return Databases(run.database_url(), run_directory=run.directory, run_id=run.id, worker=worker)


@pytest_asyncio.fixture
async def database(databases: Databases) -> AsyncIterator[Database]:
    """A database of this test alone, migrated, dropped at the end."""
    async with databases.database() as made:
        yield made


@pytest_asyncio.fixture
async def empty_database(databases: Databases) -> AsyncIterator[Database]:
    """A database of this test alone, without the product's schema."""
    async with databases.database(migrated=False) as made:
        yield made


@pytest.fixture(scope="session")
def shared_broker(run: Run) -> RabbitServer:
    """The node that all tests share."""
    return run.broker()


@pytest_asyncio.fixture
async def vhost(shared_broker: RabbitServer, run: Run, worker: str) -> AsyncIterator[Vhost]:
    """A virtual host of this test alone, deleted at the end."""
    async with vhost_on(shared_broker, f"{run.id}-{worker}-{next(_NUMBERS)}") as made:
        yield made


@pytest.fixture(scope="session")
def _own_postgres(run: Run, worker: str) -> PostgresServer:
    return run.own(worker).start_postgres()


@pytest.fixture(scope="session")
def _own_broker(run: Run, worker: str) -> RabbitServer:
    return run.own(worker).start_broker()


@pytest.fixture
def own_postgres(_own_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A database server that this test may stop, kill and freeze. Its methods block: `await asyncio.to_thread(…)`."""
    yield _own_postgres
    heal_postgres(_own_postgres)


@pytest.fixture
def own_broker(_own_broker: RabbitServer) -> Iterator[RabbitServer]:
    """A node that this test may stop, kill, freeze and alarm. Its methods block: `await asyncio.to_thread(…)`."""
    yield _own_broker
    heal_broker(_own_broker)


@pytest_asyncio.fixture
async def own_database(own_postgres: PostgresServer, run: Run, worker: str) -> AsyncIterator[Database]:
    """A database on `own_postgres`."""
    databases = Databases(own_postgres.url(), run_directory=run.directory, run_id=run.id, worker=worker)
    async with databases.database() as made:
        yield made
        await asyncio.to_thread(heal_postgres, own_postgres)


@pytest_asyncio.fixture
async def own_vhost(own_broker: RabbitServer, run: Run, worker: str) -> AsyncIterator[Vhost]:
    """A virtual host on `own_broker`."""
    async with vhost_on(own_broker, f"{run.id}-{worker}-{next(_NUMBERS)}") as made:
        yield made
        await asyncio.to_thread(heal_broker, own_broker)


@pytest_asyncio.fixture
async def relay_before() -> AsyncIterator[RelayBefore]:
    """`relay = await relay_before(url)`: an open relay before the server of a URL, closed at the end."""
    relays: list[Relay] = []

    async def before(url: str, *, keeps_logs: bool = False) -> Relay:
        relay = Relay.before(url, keeps_logs=keeps_logs)
        await relay.open()
        relays.append(relay)
        return relay

    yield before
    for relay in relays:
        await relay.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[StartFleet]:
    """`process = fleet(config, database_url=…, amqp_url=…)`: starts fleet processes, killed at the end if they live."""
    started: list[FleetProcess] = []

    def start(config: Path, **arguments: Any) -> FleetProcess:
        process = start_fleet(tmp_path / f"fleet-{len(started)}.log", config, **arguments)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest_asyncio.fixture
async def service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """A prepared service with one consumer, on the shared servers; no process of it runs yet."""
    made = Service(tmp_path, database, vhost, fleet)
    await made.prepare()
    return made
