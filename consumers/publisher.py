"""Publishing, proven: a message counts as sent when the broker has confirmed it and has not given it back.

A publisher has a connection of its own: under a memory alarm the broker reads nothing more from a connection that
publishes, acks included. Everything that is not a proof is an error, and every error tells what is known. What is
unknown may be published again with the same message id, for its consumers know duplicates by that.

The client finds the publish that a returned message belongs to by message id alone, so no two publishes with one id
are in flight on a channel. A publish stays in flight until the broker has answered, also when its caller has not
waited for so long.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from aiormq.channel import Channel

from consumers.connection import Connection, Endpoint, connect
from consumers.errors import (
    BrokerUnavailable,
    ChannelLost,
    PublishError,
    PublishRefused,
    PublishReturned,
)
from consumers.header_frame import RawProperties, check_header_frame
from consumers.properties import PERSISTENT, PropertyList
from consumers.sending import ChannelClosed, Letter, send, send_alone
from consumers.tolerant import install
from inbox import Backoff

log = structlog.get_logger(__name__)

_STABLE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStatistics:
    """What a publisher has told its callers so far.

    :param in_flight: sent, and not yet answered by the broker.
    :param connects: how often it connected.
    """

    confirmed: int
    returned: int
    refused: int
    unconfirmed: int
    in_flight: int
    connects: int


class Publisher:
    """Publishes through one confirmed channel of one connection, while `run` runs.

    :param url: of the broker; never shown.
    :param name: seen in the broker's list of connections.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        heartbeat_s: float = 10.0,
        connect_timeout_s: float = 10.0,
        operation_timeout_s: float = 10.0,
        first_pause_s: float = 0.2,
        longest_pause_s: float = 10.0,
    ) -> None:
        self._endpoint = Endpoint(
            url=url,
            name=name,
            heartbeat_s=heartbeat_s,
            connect_timeout_s=connect_timeout_s,
            operation_timeout_s=operation_timeout_s,
        )
        self._pauses = Backoff(first_s=first_pause_s, longest_s=longest_pause_s)
        self._log = log.bind(publisher=name)
        self._group: asyncio.TaskGroup | None = None
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._open = asyncio.Event()
        self._in_flight: dict[str, asyncio.Task[PublishError | None]] = {}
        self._alone = asyncio.Lock()
        self._confirmed = self._returned = self._refused = self._unconfirmed = self._connects = 0

    @property
    def connected(self) -> bool:
        """Whether there is a channel to publish on."""
        return self._open.is_set()

    def statistics(self) -> PublisherStatistics:
        """Return what it has told its callers so far."""
        return PublisherStatistics(
            confirmed=self._confirmed,
            returned=self._returned,
            refused=self._refused,
            unconfirmed=self._unconfirmed,
            in_flight=len(self._in_flight),
            connects=self._connects,
        )

    async def run(self) -> None:
        """Keep a connection until cancelled. What is in flight then ends unconfirmed.

        :raises ClientUnsupported: the installed AMQP client cannot be made to pass on what it cannot decode.
        """
        install()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                while True:
                    await self._connected()
        finally:
            self._group = None

    async def publish(
        self,
        *,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: bytes,
        message_id: str,
        timeout_s: float,
    ) -> None:
        """Publish a message, mandatory; returning proves that a queue has it.

        It may arrive more than once. Waiting for the connection, and for an earlier publish of the same message id,
        is part of the timeout.

        :param properties: the raw property list; it has to say persistent, and hold a message id.
        :param message_id: for errors.
        :param timeout_s: for all of it, in seconds.
        :raises PublishReturned: no queue is bound for it. :raises PublishRefused: the broker does not take it.
        :raises PublishUnconfirmed: neither is known, or it was not sent in time.
        :raises HeadersTooLarge, MalformedProperties: the property list cannot be sent.
        :raises ValueError: exchange or routing key cannot be sent, there is no message id, or it is not persistent.
        """
        if PropertyList(properties).octet("delivery_mode") != PERSISTENT:
            raise ValueError("a message that is not persistent would be lost when the broker restarts")
        letter = Letter(
            exchange=exchange,
            routing_key=routing_key,
            body=body,
            properties=RawProperties(properties),
            message_id=message_id,
        )
        deadline = asyncio.get_running_loop().time() + timeout_s
        error = await self._published(letter, properties, deadline)
        match error:
            case None:
                self._confirmed += 1
                return
            case PublishReturned():
                self._returned += 1
            case PublishRefused():
                self._refused += 1
            case _:
                self._unconfirmed += 1
        raise error

    async def _published(self, letter: Letter, properties: bytes, deadline: float) -> PublishError | None:
        loop = asyncio.get_running_loop()
        key = letter.wire_id
        try:
            async with asyncio.timeout_at(deadline):
                connection, channel, group = await self._turn(key)
        except TimeoutError:
            return letter.unconfirmed(self._waits_for(key), sent=False)
        check_header_frame(properties, connection.frame_max)
        sending = group.create_task(self._send(letter, connection, channel), name=f"publish {key}")
        self._in_flight[key] = sending
        sending.add_done_callback(lambda _: self._in_flight.pop(key))
        await asyncio.wait({sending}, timeout=max(0.0, deadline - loop.time()))
        if not sending.done():
            return letter.unconfirmed("the broker has not confirmed it in time", sent=True)
        if sending.cancelled():
            return letter.unconfirmed("the publisher was stopped", sent=True)
        return sending.result()

    async def _turn(self, key: str) -> tuple[Connection, Channel, asyncio.TaskGroup]:
        """Wait until this id may be sent now: what is returned is true as long as nothing is awaited."""
        while True:
            earlier = self._in_flight.get(key)
            if earlier is not None:
                await asyncio.wait({earlier})
                continue
            connection, channel, group = self._connection, self._channel, self._group
            if connection is None or channel is None or group is None or channel.is_closed:
                self._open.clear()
                await self._open.wait()
                continue
            await connection.until_unblocked()
            if key not in self._in_flight and not channel.is_closed and channel is self._channel:
                return connection, channel, group

    def _waits_for(self, key: str) -> str:
        if key in self._in_flight:
            return "an earlier publish of the same message id is not answered yet"
        if self._group is None:
            return "the publisher does not run"
        return "the broker blocks publishers" if self.connected else "there is no connection to the broker"

    async def _send(self, letter: Letter, connection: Connection, channel: Channel) -> PublishError | None:
        try:
            answer = await send(letter, channel)
            if isinstance(answer, ChannelClosed):
                # It may have been another one's fault, so this one is tried once more by itself.
                async with self._alone:
                    answer = await send_alone(letter, connection)
        except Exception as fault:
            # A fault of the product itself. It must fail this publish and not the group, with every other publish.
            self._log.exception("publisher.fault", message_id=letter.message_id)
            return letter.unconfirmed(type(fault).__name__, sent=True)
        return answer

    async def _connected(self) -> None:
        """One connection, from the first try to its end, and the pause after it."""
        try:
            connection = await connect(self._endpoint)
        except BrokerUnavailable as error:
            await self._pause(error)
            return
        began = asyncio.get_running_loop().time()
        self._connects += 1
        self._log.info("publisher.connected")
        try:
            lost = await self._on_connection(connection)
        finally:
            self._connection = self._channel = None
            self._open.clear()
            await connection.close()
        if asyncio.get_running_loop().time() - began > _STABLE_S:
            self._pauses.reset()
        await self._pause(lost)

    async def _on_connection(self, connection: Connection) -> BrokerUnavailable | ChannelLost:
        """Keep a channel open until the connection is lost, and return why it is."""
        while connection.loss is None:
            try:
                channel = await connection.open_channel(confirms=True)
            except ChannelLost as lost:
                return lost
            self._connection, self._channel = connection, channel
            self._open.set()
            await _closed(channel)
        return connection.loss

    async def _pause(self, error: BrokerUnavailable | ChannelLost) -> None:
        pause_s = self._pauses.next_s()
        self._log.warning("publisher.waiting", problem=str(error), next_try_s=round(pause_s, 3))
        await asyncio.sleep(pause_s)


async def _closed(channel: Channel) -> None:
    """Wait for a channel's end, that of its connection included."""
    ended = asyncio.Event()
    channel.closing.add_done_callback(lambda _: ended.set())
    await ended.wait()
