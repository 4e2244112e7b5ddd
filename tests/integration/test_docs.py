"""What the pages show runs as it stands there: handlers on a real database, configurations with their handlers."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers import Consumer
from consumers.calling import Call
from consumers.codec import Decoded, decode
from consumers.config import load
from consumers.plan import plan
from consumers.telemetry import Telemetry
from consumers.topology import topologies
from inbox import Outcome
from inbox.outcomes import Duplicate, Ended, Processed
from inbox.states import State
from tests.support.databases import Database
from tests.support.inboxes import NO_PAUSE, Process, StartProcess
from tests.support.pages import Block, blocks
from tests.support.property_lists import listing

README = [block for block in blocks() if block.page.name == "README.md"]


@pytest.fixture
def billing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the README's handler in the module, and the configuration in the file, that it names itself."""
    (handler,) = [block for block in README if block.language == "python"]
    (config,) = [block for block in README if block.language == "toml"]
    (tmp_path / "billing").mkdir()
    (tmp_path / "billing" / "__init__.py").touch()
    (tmp_path / "billing" / "handlers.py").write_text(handler.text, encoding="utf-8")
    (tmp_path / "fleet.toml").write_text(config.text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("billing.handlers", "billing"):
        sys.modules.pop(name, None)


def invoices() -> Consumer:
    consumer = importlib.import_module("billing.handlers").invoices
    assert isinstance(consumer, Consumer)
    return consumer


async def delivered(one: Process, consumer: Consumer, body: bytes, *, message_id: str = "m-1") -> Outcome:
    """Decode a delivery and try it, as a lane does."""
    decoded = decode(
        consumer=consumer.name,
        queue="billing.invoices",
        body=body,
        properties=listing(message_id=message_id.encode(), type=b"order.placed", app_id=b"shop"),
        fault=None,
        exchange="shop",
        routing_key="order.placed",
        redelivered=False,
    )
    assert isinstance(decoded, Decoded)
    telemetry = Telemetry.create("billing", "0", schema=1).consumer(consumer.name, queue="billing.invoices", types=())
    async with consumer.open(start_timeout_s=5, stop_timeout_s=5) as resources:
        with telemetry.process(decoded.message, redelivered=False, correlation_id=None) as span:
            call = Call(decoded, consumer.resolve(resources), consumer=consumer.name, ignore_unknown=False, span=span)
            return await one.attempt(decoded.message, call, NO_PAUSE)


async def test_the_handler_of_the_readme_has_one_effect(
    billing: Path, process: StartProcess, database: Database
) -> None:
    await database.execute("create table invoice (order_id text, cents integer)")
    one, consumer = await process(), invoices()
    order = json.dumps({"id": "o-1", "cents": 1250}).encode()
    assert await delivered(one, consumer, order) == Processed(1)
    assert await delivered(one, consumer, order) == Duplicate()
    assert [tuple(row) for row in await database.fetch("select order_id, cents from invoice")] == [("o-1", 1250)]


async def test_the_handler_of_the_readme_rejects_a_bad_body_and_its_bytes_are_kept(
    billing: Path, process: StartProcess, database: Database
) -> None:
    await database.execute("create table invoice (order_id text, cents integer)")
    outcome = await delivered(await process(), invoices(), b'{"id": 1}')
    assert isinstance(outcome, Ended) and outcome.state is State.REJECTED
    assert await database.fetchval("select body from inbox.message where message_id = 'm-1'") == b'{"id": 1}'


def test_the_configuration_of_the_readme_fits_its_handler(billing: Path) -> None:
    config = load(
        billing / "fleet.toml", environ={"DATABASE_URL": "postgresql://db/billing", "AMQP_URL": "amqp://broker"}
    )
    (topology,) = topologies(plan(config))
    assert [queue.name for queue in topology.queues] == [
        "billing.invoices",
        "billing.invoices.park.1s",
        "billing.invoices.park.5s",
        "billing.invoices.park.30s",
        "billing.invoices.park.5m",
        "billing.invoices.dead",
    ]


@pytest.mark.parametrize("block", [each for each in blocks("python") if each not in README], ids=str)
def test_every_other_piece_of_python_runs(block: Block) -> None:
    exec(compile(block.text, str(block), "exec"), {"__name__": f"block_{block.line}"})


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
async def test_every_statement_is_one_that_the_schema_knows(block: Block, database: Database) -> None:
    for statement in block.text.split(";"):
        if statement.strip():
            await database.execute(f"explain {statement}")
