"""`inbox-fleet topology` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumers.cli.exits import Exit
from tests.support.command import Finished, inbox_fleet
from tests.support.configs import write_config
from tests.support.vhosts import Vhost

HANDLERS = """
from consumers import Consumer

orders, bills = Consumer("orders"), Consumer("bills")

@orders.on("order.placed", pacing=["0s", "3s"])
@bills.on("*")
async def handle(envelope, tx): ...
"""
CONSUMERS: dict[str, dict[str, Any]] = {
    "orders": {"queue": "orders", "handler": "topology_handlers:orders", "bindings": []},
    "bills": {
        "queue": "bills",
        "handler": "topology_handlers:bills",
        "pacing": ["0s"],
        "queue_type": "classic",
        "dead_letters": False,
    },
}
QUEUES = {"orders", "orders.park.1s", "orders.park.3s", "orders.dead", "bills", "bills.park.1s"}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "topology_handlers.py").write_text(HANDLERS)
    write_config(tmp_path, consumers=CONSUMERS)
    return tmp_path


async def topology(command: str, folder: Path, vhost: Vhost) -> Finished:
    return await inbox_fleet("topology", command, folder=folder, environ={"AMQP_URL": vhost.url})


async def found(command: str, folder: Path, vhost: Vhost) -> tuple[int, dict[str, str]]:
    """Return the exit code and, by name of the thing, its status."""
    done = await inbox_fleet("topology", command, "-o", "json", folder=folder, environ={"AMQP_URL": vhost.url})
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    return done.code, {finding["name"]: finding["status"] for finding in answer["findings"]}


async def test_what_is_shown_is_what_is_applied_and_then_verified(fleet: Path, vhost: Vhost) -> None:
    shown = await inbox_fleet("topology", "show", "--output", "json", folder=fleet, environ={})
    needed = {queue["name"] for consumer in json.loads(shown.stdout)["consumers"] for queue in consumer["queues"]}
    assert (shown.code, needed) == (Exit.OK, QUEUES)

    assert await found("verify", fleet, vhost) == (Exit.PRECONDITION, dict.fromkeys(QUEUES, "missing"))
    assert await found("apply", fleet, vhost) == (Exit.OK, dict.fromkeys(QUEUES, "created"))
    assert await found("verify", fleet, vhost) == (Exit.OK, dict.fromkeys(QUEUES, "as configured"))
    assert await found("apply", fleet, vhost) == (Exit.OK, dict.fromkeys(QUEUES, "as configured"))


async def test_a_table_names_every_queue_in_full(fleet: Path, vhost: Vhost) -> None:
    await topology("apply", fleet, vhost)
    verified = await topology("verify", fleet, vhost)
    assert verified.code == Exit.OK
    for queue in QUEUES:
        assert f" {queue} " in verified.stdout
    assert "\x1b" not in verified.stdout


async def test_a_binding_brings_messages_of_its_exchange(fleet: Path, vhost: Vhost) -> None:
    bound = {"exchange": "shop", "exchange_type": "topic", "routing_key": "order.*"}
    write_config(fleet, consumers={**CONSUMERS, "orders": {**CONSUMERS["orders"], "bindings": [bound]}})
    applied = await topology("apply", fleet, vhost)
    assert applied.code == Exit.OK
    await vhost.publish("order.placed", b"{}", exchange="shop")
    delivered = await vhost.drain("orders")
    assert [message.routing_key for message in delivered] == ["order.placed"]


async def test_a_queue_that_differs_is_named_and_left_alone(fleet: Path, vhost: Vhost) -> None:
    await vhost.declare_queue("orders", kind="classic")
    refused = await topology("apply", fleet, vhost)
    assert refused.code == Exit.PARTIAL
    assert "consumer orders: queue orders is different" in refused.stderr
    assert "x-queue-type" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert " bills.park.1s " in refused.stdout
    code, status = await found("verify", fleet, vhost)
    assert code == Exit.PRECONDITION
    assert status == {
        "orders": "different",
        "orders.park.1s": "missing",
        "orders.park.3s": "missing",
        "orders.dead": "missing",
        "bills": "as configured",
        "bills.park.1s": "as configured",
    }


async def test_an_exchange_of_somebody_else_must_be_there(fleet: Path, vhost: Vhost) -> None:
    bound = {"exchange": "shop", "routing_key": "order.*"}
    write_config(fleet, consumers={"orders": {**CONSUMERS["orders"], "bindings": [bound]}})
    refused = await topology("apply", fleet, vhost)
    assert refused.code == Exit.PRECONDITION
    assert "exchange shop is missing" in refused.stderr


async def test_arguments_that_lose_messages_are_refused_as_configuration(fleet: Path, vhost: Vhost) -> None:
    lossy = {**CONSUMERS["orders"], "queue_arguments": {"x-message-ttl": 1000}}
    write_config(fleet, consumers={"orders": lossy})
    for command in ("show", "apply", "verify"):
        refused = await topology(command, fleet, vhost)
        assert refused.code == Exit.USAGE
        assert "x-message-ttl" in refused.stderr
        assert "Traceback" not in refused.stderr


async def test_a_broker_that_is_not_there_or_refuses_us_is_named_without_the_password(
    fleet: Path, vhost: Vhost
) -> None:
    account, _, address = vhost.url.removeprefix("amqp://").rpartition("@")
    user = account.partition(":")[0]
    for url in ("amqp://app:hunter2@127.0.0.1:1/x", f"amqp://{user}:hunter2@{address}", f"{vhost.url}-nowhere"):
        refused = await inbox_fleet("topology", "verify", folder=fleet, environ={"AMQP_URL": url})
        assert (refused.code, refused.stdout) == (Exit.UNREACHABLE, "")
        assert "127.0.0.1" in refused.stderr
        assert "hunter2" not in refused.stderr
        assert "Traceback" not in refused.stderr
