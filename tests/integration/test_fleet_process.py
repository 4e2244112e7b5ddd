"""Fleet processes as the fault tests run them: started, ready, killed at a point, frozen, ended in order."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.configs import write_config
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.ledger import create_ledger, effects, exactly_one_effect_each
from tests.support.process import StartFleet, command
from tests.support.vhosts import Vhost


@pytest_asyncio.fixture
async def config(tmp_path: Path, database: Database, vhost: Vhost) -> Path:
    """A fleet of one consumer `orders`, its topology applied and its ledger empty."""
    path = write_config(tmp_path, consumers={"orders": {"queue": "orders", "handler": "tests.support.handlers:orders"}})
    await create_ledger(database)
    await command(path, "topology", "apply", database_url=database.url, amqp_url=vhost.url)
    return path


async def order(vhost: Vhost, **facts: object) -> str:
    return await vhost.publish("orders", json.dumps(facts).encode(), type="order.placed", app_id="shop")


async def test_a_process_becomes_ready_works_and_ends_in_order(
    config: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    process = fleet(config, database_url=database.url, amqp_url=vhost.url)
    await process.ready()
    ids = [await order(vhost) for _ in range(20)]

    await eventually(lambda: _all_done(database, vhost, 20))
    process.terminate()

    await process.exited(0)
    await exactly_one_effect_each(database, ids)


@pytest.mark.parametrize("nth", [1, 3])
async def test_a_process_kills_itself_at_the_named_passage(
    config: Path, database: Database, vhost: Vhost, fleet: StartFleet, nth: int
) -> None:
    ids = [await order(vhost) for _ in range(5)]

    process = fleet(config, database_url=database.url, amqp_url=vhost.url, kill_at=f"commit.answered:{nth}")

    await process.exited(-signal.SIGKILL)
    assert nth <= sum((await effects(database)).values()) <= 5
    successor = fleet(config, database_url=database.url, amqp_url=vhost.url)
    await eventually(lambda: _all_done(database, vhost, 5), 30)
    await exactly_one_effect_each(database, ids)
    successor.terminate()
    await successor.exited(0)


async def test_a_frozen_process_goes_on_where_it_was(
    config: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    sent = await order(vhost)
    process = fleet(config, database_url=database.url, amqp_url=vhost.url, freeze_at="effects.done")

    await process.frozen()
    assert await effects(database) == {}

    process.proceed()
    await eventually(lambda: _all_done(database, vhost, 1))
    await exactly_one_effect_each(database, [sent])


async def test_a_process_that_cannot_start_says_so_and_ends(
    database: Database, vhost: Vhost, fleet: StartFleet, tmp_path: Path
) -> None:
    process = fleet(tmp_path / "missing.toml", database_url=database.url, amqp_url=vhost.url)

    await process.exited(2)
    assert "missing.toml" in process.output


async def _all_done(database: Database, vhost: Vhost, number: int) -> bool:
    counts = await vhost.counts("orders")
    return counts.total == 0 and len(await effects(database)) == number
