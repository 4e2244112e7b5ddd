"""Whether a consumer's queues are empty, as far as AMQP tells: how many messages each has ready.

Deliveries in somebody's hands are not among those, nor copies that are on their way from one queue to another. Queues
are looked at in the order in which a copy goes through them, so that one which moves on meanwhile is seen in the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
from aiormq.channel import Channel

from consumers.broker_faults import CHANNEL_CODES
from consumers.connection import Connection, Endpoint, connect
from consumers.errors import BrokerUnavailable, ChannelLost

log = structlog.get_logger(__name__)


class Emptiness:
    """Looks at queues over a connection and a channel of its own, made when they are needed and kept until they fail.

    :param queues: of each consumer, in the order in which a copy goes through them.
    """

    def __init__(self, endpoint: Endpoint, queues: Mapping[str, Sequence[str]]) -> None:
        self._endpoint = endpoint
        self._queues = queues
        self._connection: Connection | None = None
        self._channel: Channel | None = None

    async def seen(self, consumer: str) -> bool:
        """Return whether all queues of a consumer were just seen empty. What cannot be seen is not."""
        try:
            connection, channel = await self._opened()
            for queue in self._queues[consumer]:
                found = await connection.answer(
                    channel.queue_declare(queue, passive=True), action=f"look at queue {queue}"
                )
                if found.message_count:
                    return False
        except (BrokerUnavailable, ChannelLost) as error:
            self._channel = None
            if self._connection is not None and isinstance(error, ChannelLost) and error.code not in CHANNEL_CODES:
                await self._connection.drop(error)
            log.warning("sweep.not_seen", consumer=consumer, problem=str(error))
            return False
        return True

    async def close(self) -> None:
        """End the connection."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _opened(self) -> tuple[Connection, Channel]:
        if self._connection is not None and self._connection.is_lost:
            await self.close()
        if self._connection is None:
            self._connection = await connect(self._endpoint)
        if self._channel is None or self._channel.is_closed:
            self._channel = await self._connection.open_channel()
        return self._connection, self._channel
