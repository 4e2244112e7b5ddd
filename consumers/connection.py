"""One connection to the broker, from its handshake to its end; nothing reconnects under its user.

It stands on aiormq, the protocol layer of aio-pika, because only there a server-sent cancel can be seen, the raw
properties of a message be had, and a socket be taken away from a peer that does not answer. A loss is told once, by
the client's closing future: its predicates stay silent. Every wait has a deadline, and a wait that the client ends by
cancelling it is a lost channel, not a shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiormq
import aiormq.abc
from aiormq.channel import Channel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import AMQPError, ChannelClosed, ChannelInvalidStateError, ConnectionClosed
from yarl import URL

from consumers.broker_faults import channel_lost, unavailable
from consumers.errors import BrokerUnavailable, ChannelLost
from inbox.redaction import HIDDEN, host_of, vhost_of

T = TypeVar("T")

CLOSE_TIMEOUT_S = 2.0
_ABORT_TIMEOUT_S = 1.0
_REPLY_SUCCESS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How to reach a broker.

    :param name: seen in the broker's list of connections.
    :param heartbeat_s: whole seconds; a silent line is noticed after three times this and three seconds more.
    :param operation_timeout_s: for each answer of the broker that is waited for.
    """

    url: str = field(repr=False)
    name: str
    heartbeat_s: float = 10.0
    connect_timeout_s: float = 10.0
    operation_timeout_s: float = 10.0

    @property
    def broker(self) -> str:
        """Host and port, as messages name the broker."""
        try:
            return host_of(self.url)
        except ValueError:
            return "with an unreadable URL"

    @property
    def vhost(self) -> str:
        """The virtual host, as messages name it."""
        try:
            return vhost_of(self.url)
        except ValueError:
            return HIDDEN


class Connection:
    """An open connection. Made by `connect` alone."""

    def __init__(self, endpoint: Endpoint, client: aiormq.abc.AbstractConnection, transport: _Transport) -> None:
        self.endpoint = endpoint
        self.loss: BrokerUnavailable | None = None
        self._client = client
        self._transport = transport
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners: list[Callable[[], object]] = []
        client.closing.add_done_callback(self._ended)

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, by whomever."""
        return self.loss is not None

    @property
    def server_version(self) -> str:
        """The broker's version, as it gives it: "3.10.8"."""
        version = self._client.server_properties.get("version", "")
        return version.decode() if isinstance(version, bytes) else str(version)

    @property
    def frame_max(self) -> int:
        """The largest frame that may be sent, in bytes; 0 for no limit."""
        return self._client.connection_tune.frame_max or 0

    def on_loss(self, listener: Callable[[], object]) -> None:
        """Call a function once the connection is lost; at once if it is already."""
        if self.is_lost:
            listener()
        else:
            self._listeners.append(listener)

    async def open_channel(self, *, confirms: bool = False, within_s: float | None = None) -> Channel:
        """Open a channel.

        :param confirms: the broker confirms each publish on it, and a returned message is an error.
        :param within_s: the deadline; the endpoint's operation timeout by default.
        :raises ChannelLost: it was not opened in time, or the connection is lost.
        """
        action = "open a channel"
        if self._client.is_closed:
            raise self._channel_lost(None, action)
        opening = self._client.channel(publisher_confirms=confirms, on_return_raises=confirms)
        channel = await self.answer(opening, action=action, within_s=within_s)
        assert isinstance(channel, Channel)  # the abstract class does not tell which consumers a channel has
        return channel

    async def answer(self, asked: Awaitable[T], *, action: str, within_s: float | None = None) -> T:
        """Wait for an answer of the broker.

        :param action: what was asked for, for the error.
        :param within_s: the deadline; the endpoint's operation timeout by default. After it the channel is closed.
        :raises ChannelLost: the broker closed the channel or the connection, or did not answer in time.
        """
        deadline_s = self.endpoint.operation_timeout_s if within_s is None else within_s
        try:
            async with asyncio.timeout(deadline_s):
                return await asked
        except asyncio.CancelledError:
            if is_shutdown():
                raise
            raise self._channel_lost(None, action) from None
        except (AMQPError, ChannelInvalidStateError, OSError) as fault:
            if is_shutdown():
                raise asyncio.CancelledError from fault
            raise self._channel_lost(fault, action) from fault

    async def until_unblocked(self) -> None:
        """Wait until the broker takes what is published on this connection, or it is lost. The caller sets a deadline.

        Under a memory or disk alarm the broker blocks connections that publish.
        """
        ready = asyncio.ensure_future(self._client.ready())
        try:
            await asyncio.wait({ready, self._lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()

    async def close_channel(self, channel: Channel) -> None:
        """Close a channel, which gives back what is unsettled on it; within two seconds, whatever the peer does."""
        if channel.is_closed or self.is_lost:
            return
        # The reason is given to whoever still waits on the channel; the client's default would look like a shutdown.
        closing = channel.close(ChannelClosed(_REPLY_SUCCESS, "closed by this process"))
        try:
            await self.answer(closing, action="close a channel", within_s=CLOSE_TIMEOUT_S)
        except ChannelLost:
            return  # closed is closed, and one that does not answer ends with its connection

    async def close(self) -> None:
        """End the connection: in order if the peer answers within two seconds, else by taking the socket away."""
        reason = ConnectionClosed(_REPLY_SUCCESS, "closed by this process")
        closing = asyncio.ensure_future(self._client.close(reason))
        try:
            done, _ = await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
            if not done:
                await self._abort(closing)
        except asyncio.CancelledError:
            self._transport.abort()
            closing.cancel()
            raise

    async def drop(self, lost: ChannelLost) -> None:
        """End a connection without asking it: it does not answer, or is ending already.

        :param lost: what shows it.
        """
        self._lose(unavailable(lost.__cause__, broker=self.endpoint.broker, vhost=self.endpoint.vhost, action="go on"))
        await self._abort(asyncio.ensure_future(self._client.close(ConnectionClosed(_REPLY_SUCCESS, lost.problem))))

    async def _abort(self, closing: asyncio.Future[Any]) -> None:
        self._transport.abort()
        await asyncio.wait({closing}, timeout=_ABORT_TIMEOUT_S)
        closing.cancel()

    def _ended(self, closing: asyncio.Future[Any]) -> None:
        fault = None if closing.cancelled() else closing.exception()
        self._lose(unavailable(fault, broker=self.endpoint.broker, vhost=self.endpoint.vhost, action="go on"))

    def _lose(self, loss: BrokerUnavailable) -> None:
        if self.loss is None:
            self.loss = loss
            self._lost.set_result(None)
            for listener in self._listeners:
                listener()

    def _channel_lost(self, fault: BaseException | None, action: str) -> ChannelLost:
        return channel_lost(fault, broker=self.endpoint.broker, action=action)


async def connect(endpoint: Endpoint) -> Connection:
    """Connect, within the endpoint's connect timeout.

    :raises BrokerUnavailable: there is no connection; its hint says what to look at.
    """
    transport = _Transport()
    try:
        url = URL(endpoint.url).update_query(heartbeat=str(int(endpoint.heartbeat_s)))
        async with asyncio.timeout(endpoint.connect_timeout_s):
            client = _Client(url, transport_factory=transport)
            await client.connect({"connection_name": endpoint.name})
    except asyncio.CancelledError:
        transport.abort()
        if is_shutdown():
            raise
        raise unavailable(None, broker=endpoint.broker, vhost=endpoint.vhost, action="connect") from None
    except (AMQPError, OSError, EOFError) as fault:
        transport.abort()
        if is_shutdown():
            raise asyncio.CancelledError from fault
        raise unavailable(fault, broker=endpoint.broker, vhost=endpoint.vhost, action="connect") from fault
    except (ValueError, KeyError):
        # Neither text nor cause is passed on: they quote the URL, its password included.
        raise BrokerUnavailable(
            broker=endpoint.broker,
            action="connect",
            problem="its URL cannot be read",
            hint="write it as amqp://user:password@host:port/vhost, with special characters percent-encoded",
        ) from None
    return Connection(endpoint, client, transport)


def is_shutdown() -> bool:
    """Return whether this task is to end, asked after a wait on the client has failed.

    Its failures do not tell: when a channel is lost the client ends waits by cancelling them, though nobody has asked
    this task to end; and it turns a cancellation that comes while it gives up into the error of the loss.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class _Client(aiormq.Connection):
    """The client's connection, with as much room for what is to be written as its users send.

    Without room it drops its answer to a channel that the broker closes, whose number then never becomes free; and what
    waits for room is written after that answer, for which the broker ends the connection with all its channels.
    """

    FRAME_BUFFER_SIZE = 0


class _Transport(TransportFactory):
    """Opens the socket, and keeps it: a peer that does not answer cannot hold up the end of a connection."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, self._writer = await factory.create(url, **options)
        return reader, self._writer

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
