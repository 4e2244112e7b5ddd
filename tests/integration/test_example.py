"""The example service, set up with the commands that stand at the head of its configuration."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import inbox_fleet
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.process import StartFleet
from tests.support.servers import CHECKOUT
from tests.support.vhosts import Vhost

EXAMPLES = CHECKOUT / "examples"
# Tests take any free port, on the loopback interface alone.
HTTP = '\n[http]\nhost = "127.0.0.1"\nport = 0\n'


async def test_the_example_service_places_an_order_once(
    empty_database: Database, vhost: Vhost, fleet: StartFleet, tmp_path: Path
) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text((EXAMPLES / "orders" / "fleet.toml").read_text() + HTTP)
    urls = {"DATABASE_URL": empty_database.url, "AMQP_URL": vhost.url}
    await empty_database.execute((EXAMPLES / "orders" / "schema.sql").read_text())
    for command in (("migrate",), ("topology", "apply", "--app-dir", str(EXAMPLES))):
        finished = await inbox_fleet(*command, "--config", str(config), folder=CHECKOUT, environ=urls)
        assert finished.code == 0, finished.stderr
    process = fleet(
        config,
        database_url=empty_database.url,
        amqp_url=vhost.url,
        environment={"PYTHONPATH": f"{CHECKOUT}:{EXAMPLES}"},
    )
    await process.ready()

    order = {"id": "o-1", "customer": "c-1", "cents": 1250}
    for message_id, body in (("m-1", order), ("m-1", order), ("m-2", {"id": "o-2"})):
        await vhost.publish(
            "order.placed", json.dumps(body).encode(), exchange="amq.topic", message_id=message_id, type="order.placed"
        )

    async def all_settled() -> bool:
        queues = await vhost.queues()
        # What was rejected has its dead letter, which stays.
        return all(queue.total == 0 for name, queue in queues.items() if not name.endswith(".dead"))

    await eventually(all_settled, what="every copy being settled")
    placed = await empty_database.fetch("select order_id, customer, cents from placed_order")
    assert [tuple(row) for row in placed] == [("o-1", "c-1", 1250)]
    process.terminate()
    await process.exited(0)
