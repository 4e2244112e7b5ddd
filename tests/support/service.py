"""A complete small service for tests with real processes: one queue, its handlers, a ledger, and the oracle.

`service.publish` says what each message shall do (`tests.support.behaviours.Behaviour`), `service.start` runs fleet
processes, `service.settled` waits until no queue holds anything, and `service.exact` asserts what the product promises.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import aio_pika
import aio_pika.abc

from consumers.config import load
from consumers.connection import Endpoint, connect
from consumers.plan import plan
from consumers.topology import apply, topologies
from inbox import message_key
from tests.support.configs import write_config
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.ledger import create_ledger, exactly_one_effect_each
from tests.support.process import FleetProcess, StartFleet
from tests.support.vhosts import Vhost

SOURCE = "tests"
QUEUE = "work"


class Service:
    """One test's service.

    Args:
        consumers: Tables of consumers by name, over the defaults; handlers exist for "work" and "audit".
        tables: Other tables of the configuration, over the defaults.
    """

    def __init__(
        self,
        directory: Path,
        database: Database,
        vhost: Vhost,
        fleet: StartFleet,
        *,
        consumers: Mapping[str, Mapping[str, Any]] | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.database = database
        self.vhost = vhost
        self.calls_file = directory / "calls.jsonl"
        self._fleet = fleet
        self._directory = directory
        named = consumers or {"work": {}}
        self.config = write_config(
            directory,
            consumers={
                name: {
                    "queue": QUEUE if name == "work" else name,
                    "handler": f"tests.support.behaviours:{name}",
                    "pacing": ["0s", "200ms"],
                    "contention_step": "200ms",
                    **table,
                }
                for name, table in named.items()
            },
            tables=tables,
        )

    async def prepare(self) -> None:
        """Create the ledger and the topology."""
        await create_ledger(self.database)
        await self.apply_topology()

    async def apply_topology(self) -> None:
        """Declare what is missing, as `inbox-fleet topology apply` does."""
        connection = await connect(Endpoint(url=self.vhost.url, name="tests.topology"))
        try:
            for topology in topologies(
                plan(load(self.config, environ={"DATABASE_URL": self.database.url, "AMQP_URL": self.vhost.url}))
            ):
                await apply(connection, topology)
        finally:
            await connection.close()

    def spawn(
        self,
        *,
        kill_at: str | None = None,
        freeze_at: str | None = None,
        database_url: str | None = None,
        amqp_url: str | None = None,
    ) -> FleetProcess:
        """Start a process, perhaps through relays, and return without waiting for it."""
        return self._fleet(
            self.config,
            database_url=database_url or self.database.url,
            amqp_url=amqp_url or self.vhost.url,
            kill_at=kill_at,
            freeze_at=freeze_at,
            environment={"CALLS_FILE": str(self.calls_file)},
        )

    async def start(self, **options: str | None) -> FleetProcess:
        """Start a process and wait until it is ready."""
        process = self.spawn(**options)
        await process.ready()
        return process

    def file(self, name: str) -> Path:
        """Return a path for a handler's `reached` or `wait_for`."""
        return self._directory / name

    async def publish(
        self, *ids: str, copies: int = 1, kind: str = "test.work", exchange: str = "", **behaviour: Any
    ) -> None:
        """Publish a message for each id, confirmed; the rest says what its handler does."""
        body = json.dumps(behaviour).encode()
        channel = await self.vhost.channel()
        target = channel.default_exchange if not exchange else await channel.get_exchange(exchange, ensure=False)
        for message_id in ids:
            for _ in range(copies):
                message = aio_pika.Message(
                    body,
                    message_id=message_id,
                    type=kind,
                    app_id=SOURCE,
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                await target.publish(message, routing_key=QUEUE, mandatory=True)

    async def publish_redelivered(self, *ids: str, copies: int = 1, **behaviour: Any) -> None:
        """Publish messages that come as redelivered, and so are counted before they run. Nobody may consume yet."""
        await self.publish(*ids, copies=copies, **behaviour)
        await self.give_back(await self.take(len(ids) * copies))

    async def take(self, number: int) -> list[aio_pika.abc.AbstractIncomingMessage]:
        """Take so many messages from the queue, as soon as they are there, and hold them. Nobody may consume."""
        queue = await (await self.vhost.channel()).get_queue(QUEUE, ensure=False)
        taken: list[aio_pika.abc.AbstractIncomingMessage] = []

        async def another() -> bool:
            message = await queue.get(fail=False)
            taken.extend([] if message is None else [message])
            return len(taken) == number

        await eventually(another, what=f"{number} messages in the queue")
        return taken

    async def give_back(self, taken: Iterable[aio_pika.abc.AbstractIncomingMessage]) -> None:
        """Give messages back to the queue: they come as redelivered."""
        for message in taken:
            await message.nack(requeue=True)

    def calls(self) -> list[dict[str, Any]]:
        """Return every call of a handler so far, also of those that were rolled back or died."""
        if not self.calls_file.exists():
            return []
        return [json.loads(line) for line in self.calls_file.read_text(encoding="utf-8").splitlines()]

    def starts(self) -> Counter[str]:
        """Return how often each message's handler was called."""
        return Counter(call["id"] for call in self.calls())

    async def settled(self, within_s: float = 30.0) -> None:
        """Wait until no queue but those of dead letters holds a message, ready, unacknowledged or parked."""

        async def empty() -> bool:
            queues = await self.vhost.queues()
            held = {name: counts for name, counts in queues.items() if counts.total and not name.endswith(".dead")}
            assert not held, f"messages are left in {held}"
            return True

        await eventually(empty, within_s, what="every queue being empty", every_s=0.2)

    async def exact(self, ids: Iterable[str], *, terminal: Mapping[str, str] | None = None) -> None:
        """Assert one effect and one receipt for each good message, and one terminal row for each other.

        Args:
            ids: Messages that were processed.
            terminal: For the others the state that they must be in, by id.
        """
        good, bad = set(ids), dict(terminal or {})
        await exactly_one_effect_each(self.database, good)
        keys = {message_key("work", SOURCE, message_id): message_id for message_id in good}
        receipts = [row["key"] for row in await self.database.fetch("select key from inbox.receipt")]
        assert len(receipts) == len(set(receipts)), "a message has two receipts"
        missing = sorted(keys[key] for key in keys.keys() - set(receipts))
        assert not missing, f"{len(missing)} processed messages have no receipt: {missing[:5]}"
        rows = await self.database.fetch("select message_id, state, octet_length(body) as bytes from inbox.message")
        assert {row["message_id"]: row["state"] for row in rows} == bad
        assert all(row["bytes"] > 0 for row in rows), "a terminal message has lost its body"

    async def at_rest(self, within_s: float = 10.0) -> None:
        """Wait until no session holds a lock on a key or an open transaction."""

        async def none_left() -> bool:
            locks = await self.database.fetchval(
                "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
                "where l.locktype = 'advisory' and d.datname = current_database()"
            )
            sessions = [row for row in await self.database.sessions() if row["state"] not in ("idle", "active")]
            assert not locks and not sessions, f"{locks} advisory locks, sessions {sessions}"
            return True

        await eventually(none_left, within_s, what="the database being at rest")

    async def stopped(self, *processes: FleetProcess) -> None:
        """Stop processes in order, and assert that each ends well."""
        for process in processes:
            process.terminate()
        await asyncio.gather(*(process.exited(0) for process in processes))
