"""A channel that consumes one queue: opened, proven, watched and cancelled. It lives once.

The broker's callback makes a `Delivery` and calls `receive`, at once and in order. Nothing of a message's work is a
task of the channel's, so a lost channel cancels nothing; it only makes settlements void.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import structlog
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel

from consumers.broker_faults import CHANNEL_CODES, NOT_FOUND, problem_of
from consumers.connection import Connection
from consumers.delivery import Delivery
from consumers.errors import ChannelLost
from consumers.settlement import Incarnation, Tally
from consumers.tolerant import received

log = structlog.get_logger(__name__)

RECEIVE_FAULT_PAUSE_S = 1.0
"""A delivery that `receive` failed on is given back after this pause, so that it does not spin."""

_MOST_DOUBLINGS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """What is consumed, and by whom.

    :param name: of the subscription, the beginning of its consumer tags.
    :param prefetch: how many deliveries may be unsettled.
    :param receive: called with each delivery on the event loop.
    :param takes_turns: the broker gives messages to one consumer of the queue at a time, so that it is no sign of
        anything if they wait and none comes.
    :param tally: counts over all channels of the subscription.
    :param stir: called when the subscription has to look at the channel.
    """

    queue: str
    name: str
    prefetch: int
    receive: Callable[[Delivery], None]
    takes_turns: bool
    tally: Tally
    stir: Callable[[], None]


class ConsumerChannel:
    """A channel with one consumer. Made by `open` alone."""

    def __init__(self, connection: Connection, channel: Channel, consuming: Consuming) -> None:
        self.tag = f"{consuming.name[:200]}.{uuid4().hex}"
        self.cancelled = False
        self.incarnation = Incarnation(
            channel,
            queue=consuming.queue,
            timeout_s=connection.endpoint.operation_timeout_s,
            tally=consuming.tally,
        )
        self._connection = connection
        self._channel = channel
        self._consuming = consuming
        self._flowed: tuple[int, float] | None = None

    @classmethod
    async def open(cls, connection: Connection, consuming: Consuming) -> Self:
        """Open a channel that does not consume yet.

        :raises ChannelLost: it was not opened in time, or the connection is lost.
        """
        channel = await connection.open_channel()
        self = cls(connection, channel, consuming)
        channel.closing.add_done_callback(self._closed)
        # The hook runs in the channel's reader, where waiting for an answer on this channel would wait for ever.
        channel.on_consumer_cancel_callbacks.add(lambda _: self._server_cancelled())
        return self

    async def consume(self) -> None:
        """Consume. Returning proves that the broker has the consumer; deliveries come before that.

        :raises ChannelLost: it has not; code 404 if there is no such queue.
        """
        consuming, channel = self._consuming, self._channel
        # First the limit: one that is set after consuming began does not apply.
        await self._connection.answer(channel.basic_qos(prefetch_count=consuming.prefetch), action="limit the prefetch")
        asking = channel.basic_consume(consuming.queue, self._delivered, consumer_tag=self.tag)
        await self._connection.answer(asking, action=f"consume {consuming.queue}")

    def problem(self) -> str | None:
        """Return why nothing comes on it any more, or None. Costs nothing: it asks the client, not the broker."""
        if self.incarnation.end is not None:
            return self.incarnation.end
        if self._channel.is_closed:
            return "the channel was closed"
        if not self.cancelled and self.tag not in self._channel.consumers:
            return "the client has lost the consumer"
        return None

    async def cancel(self, within_s: float) -> None:
        """Take no more deliveries; what is at hand can be settled yet. If the broker does not confirm it, nothing can.

        :param within_s: for the broker's answer.
        """
        cancelling = self._channel.basic_cancel(self.tag)
        try:
            await self._connection.answer(cancelling, action="cancel the consumer", within_s=within_s)
        except ChannelLost as error:
            self.incarnation.finish(str(error))
        else:
            self.cancelled = True

    async def close(self) -> None:
        """Close the channel, which gives back to the broker what is unsettled."""
        self.incarnation.finish("the channel was given up")
        await self._connection.close_channel(self._channel)

    async def probe(self, *, every_s: float, timeout_s: float, stalled_after_s: float) -> None:
        """Ask the broker for the queue again and again: a line that is half open answers nothing, and a consumer to
        which nothing comes although messages wait is none.

        It asks on a channel of its own, because a question that is not answered closes its channel.

        :param timeout_s: for each answer.
        :param stalled_after_s: see `SubscriptionTiming`.
        """
        channel: Channel | None = None
        queue = self._consuming.queue
        while True:
            await asyncio.sleep(every_s)
            try:
                if channel is None or channel.is_closed:
                    channel = await self._connection.open_channel(within_s=timeout_s)
                asking = channel.queue_declare(queue, passive=True)
                found = await self._connection.answer(asking, action=f"look at {queue}", within_s=timeout_s)
                self._check_flow(found.message_count or 0, stalled_after_s)
            except ChannelLost as error:
                if error.code == NOT_FOUND:
                    self._over("its queue is gone")
                elif error.code not in CHANNEL_CODES and not self._connection.is_lost:
                    await self._connection.drop(error)

    def _check_flow(self, waiting: int, stalled_after_s: float) -> None:
        """End the channel if the broker delivers nothing on it although it could.

        Where a queue is deleted and made anew at once, RabbitMQ moves the consumer to the new one by itself. The
        channel then takes the first deliveries of that for repetitions of those that it had from the old one, drops
        them, and has them for unacknowledged as long as it lives.
        """
        tally, now = self._consuming.tally, asyncio.get_running_loop().time()
        if self._flowed is None or self._flowed[0] != tally.delivered:
            if self._flowed is not None:
                tally.stalls = 0
            self._flowed = (tally.delivered, now)
        has_room = self.incarnation.unsettled < self._consuming.prefetch
        if not waiting or not has_room or self.cancelled or self._consuming.takes_turns:
            self._flowed = (tally.delivered, now)
        elif now - self._flowed[1] >= stalled_after_s * 2 ** min(tally.stalls, _MOST_DOUBLINGS):
            tally.stalls += 1
            self._over(f"{waiting} messages wait and none has come for {now - self._flowed[1]:.0f} s")

    def _closed(self, closing: asyncio.Future[Any]) -> None:
        fault = None if closing.cancelled() else closing.exception()
        self._over(f"the channel was closed: {problem_of(fault)}")

    def _server_cancelled(self) -> None:
        self._consuming.tally.server_cancels += 1
        self._over("the broker cancelled the consumer")

    def _over(self, reason: str) -> None:
        self.incarnation.finish(reason)
        self._consuming.stir()

    async def _delivered(self, message: DeliveredMessage) -> None:
        if self.incarnation.is_over:
            return
        settlement = self.incarnation.settlement(message.delivery_tag or 0)
        try:
            properties, fault = received(message.header)
            self._consuming.receive(
                Delivery(
                    body=message.body,
                    properties=properties,
                    fault=fault,
                    exchange=message.exchange or "",
                    routing_key=message.routing_key or "",
                    redelivered=bool(message.redelivered),
                    queue=self._consuming.queue,
                    settlement=settlement,
                )
            )
        except Exception:
            # A fault of the product itself. The message must neither stay unsettled nor spin.
            self._consuming.tally.failed_receives += 1
            log.exception("subscription.receive_failed", queue=self._consuming.queue, delivery_tag=message.delivery_tag)
            await asyncio.sleep(RECEIVE_FAULT_PAUSE_S)
            if not settlement.settled:
                await settlement.requeue()
