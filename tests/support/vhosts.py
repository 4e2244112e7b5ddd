"""A virtual host for each test, and the small client with which a test fills, counts and empties its queues."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import aio_pika
import aio_pika.abc

from servers import QueueCounts, RabbitServer


class Vhost:
    """One test's own virtual host.

    The client opens its connection when it is first needed and opens another when it lost it, so a test may close all
    connections and go on.
    """

    def __init__(self, broker: RabbitServer, name: str) -> None:
        self.name = name
        self.url = broker.url(name)
        self._broker = broker
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channel: aio_pika.abc.AbstractChannel | None = None

    async def channel(self) -> aio_pika.abc.AbstractChannel:
        """Return the test's channel, with publisher confirms, opened again if it was lost."""
        if self._connection is None or not self._connection.connected.is_set():
            self._connection, self._channel = await aio_pika.connect(self.url, timeout=10), None
        if self._channel is None or self._channel.is_closed:
            self._channel = await self._connection.channel(on_return_raises=True)
        return self._channel

    async def declare_queue(
        self, name: str, *, kind: Literal["quorum", "classic"] = "quorum", arguments: dict[str, Any] | None = None
    ) -> str:
        """Declare a durable queue and return its name."""
        channel = await self.channel()
        await channel.declare_queue(name, durable=True, arguments={"x-queue-type": kind, **(arguments or {})})
        return name

    async def publish(
        self, queue: str, body: bytes, *, message_id: str | None = None, exchange: str = "", **properties: Any
    ) -> str:
        """Publish a persistent message, confirmed and mandatory, and return its message id.

        Args:
            queue: The routing key: the queue's name for the default exchange.
            body: The body as it shall arrive.
            message_id: The message id; a new one if None, none at all if "".
            exchange: The exchange.
            properties: Further arguments of `aio_pika.Message`, such as `headers`, `type`, `content_type`, `app_id`.
        """
        given = str(uuid.uuid4()) if message_id is None else message_id
        message = aio_pika.Message(
            body, message_id=given or None, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, **properties
        )
        channel = await self.channel()
        target = channel.default_exchange if not exchange else await channel.get_exchange(exchange, ensure=False)
        await target.publish(message, routing_key=queue, mandatory=True)
        return given

    async def counts(self, queue: str) -> QueueCounts:
        """Return what a queue holds now, exactly; raises KeyError if there is no such queue."""
        return (await self.queues())[queue]

    async def queues(self) -> dict[str, QueueCounts]:
        """Return the counts of every queue by name."""
        return await asyncio.to_thread(self._broker.list_queues, self.name)

    async def drain(self, queue: str) -> list[aio_pika.abc.AbstractIncomingMessage]:
        """Take every ready message from a queue and return them in order, acked."""
        channel = await self.channel()
        source = await channel.get_queue(queue, ensure=False)
        taken: list[aio_pika.abc.AbstractIncomingMessage] = []
        while (message := await source.get(no_ack=True, fail=False)) is not None:
            taken.append(message)
        return taken

    async def connection_count(self) -> int:
        """Return the number of connections to this virtual host, the test's own included."""
        return await asyncio.to_thread(self._broker.connection_count, self.name)

    async def close_all_connections(self, reason: str = "closed by a test") -> None:
        """Let the broker close every connection to this virtual host; the test's own is closed in order before that."""
        # Nobody tells its client in time, and the test would publish on a connection that is already lost.
        await self.close()
        await asyncio.to_thread(lambda: self._broker.close_all_connections(reason, vhost=self.name))

    async def close(self) -> None:
        """Close the test's own connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


@asynccontextmanager
async def vhost_on(broker: RabbitServer, name: str) -> AsyncIterator[Vhost]:
    """Make a virtual host, and delete it at the end with all that is in it."""
    await asyncio.to_thread(broker.add_vhost, name)
    vhost = Vhost(broker, name)
    try:
        yield vhost
    finally:
        await vhost.close()
        await asyncio.to_thread(broker.delete_vhost, name)
