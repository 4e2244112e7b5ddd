"""One publish on one channel, and what its answer proves.

The client's answers are easily misread: an unroutable message comes back as a result, a nack as an error, and one bad
publish fails all that are in flight on its channel. Here each becomes None, which is a proof of arrival, or the error
that says what is known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiormq.channel import Channel
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, DeliveryError
from aiormq.exceptions import PublishError as Returned
from pamqp.commands import Basic

from consumers.broker_faults import CHANNEL_CODES, problem_of, reply_code
from consumers.connection import Connection, is_shutdown
from consumers.errors import ChannelLost, PublishError, PublishRefused, PublishReturned, PublishUnconfirmed
from consumers.header_frame import RawProperties

_MAX_SHORT_STRING_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message on its way out.

    :param message_id: for errors; the one on the wire stands in the properties.
    :raises ValueError: exchange or routing key cannot be sent.
    """

    exchange: str
    routing_key: str
    body: bytes = field(repr=False)
    properties: RawProperties
    message_id: str

    def __post_init__(self) -> None:
        Basic.Publish(exchange=self.exchange, routing_key=self.routing_key)  # the client's own rules
        if len(self.routing_key.encode()) > _MAX_SHORT_STRING_BYTES:
            raise ValueError(f"the routing key has more than {_MAX_SHORT_STRING_BYTES} bytes")

    @property
    def wire_id(self) -> str:
        """The message id that the broker sees."""
        return str(self.properties.message_id)

    def unconfirmed(self, problem: str, *, sent: bool) -> PublishUnconfirmed:
        """Return the error of a publish of which nothing is known."""
        return PublishUnconfirmed(
            exchange=self.exchange,
            routing_key=self.routing_key,
            message_id=self.message_id,
            problem=problem,
            sent=sent,
        )

    def refused(self, problem: str, *, by_queue: bool) -> PublishRefused:
        """Return the error of a publish that the broker did not take."""
        return PublishRefused(
            exchange=self.exchange,
            routing_key=self.routing_key,
            message_id=self.message_id,
            problem=problem,
            by_queue=by_queue,
        )

    def returned(self, problem: str) -> PublishReturned:
        """Return the error of a publish that no queue is bound for."""
        return PublishReturned(
            exchange=self.exchange, routing_key=self.routing_key, message_id=self.message_id, problem=problem
        )


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """The broker closed the channel, for this publish or for another one on it."""

    problem: str


async def send(letter: Letter, channel: Channel) -> PublishError | ChannelClosed | None:
    """Send on a confirmed channel and wait for the broker's answer, for as long as the channel lives.

    :return: None if a queue has it.
    """
    try:
        answer = await channel.basic_publish(
            letter.body,
            exchange=letter.exchange,
            routing_key=letter.routing_key,
            properties=letter.properties,
            mandatory=True,
            # Not for the socket: the answer is waited for anyway, and a full one would block the client's writer.
            wait=False,
        )
    except Returned as error:
        return letter.returned(f"no queue is bound for it ({error.args[0]})")
    except DeliveryError:
        return letter.refused("the broker answered with a nack: its queue is full or not available", by_queue=True)
    except asyncio.CancelledError:
        if is_shutdown():
            raise
        return letter.unconfirmed("the channel was lost before the broker answered", sent=True)
    except (AMQPError, ChannelInvalidStateError, OSError) as error:
        if reply_code(error) in CHANNEL_CODES:
            return ChannelClosed(problem_of(error))
        return letter.unconfirmed(problem_of(error), sent=True)
    if isinstance(answer, Basic.Ack):
        return None
    return letter.unconfirmed(f"the broker answered with {type(answer).__name__}", sent=True)


async def send_alone(letter: Letter, connection: Connection) -> PublishError | None:
    """Send on a channel of its own, where the broker's answer can be about nothing but this publish."""
    try:
        channel = await connection.open_channel(confirms=True)
    except ChannelLost as lost:
        return letter.unconfirmed(str(lost), sent=True)
    try:
        answer = await send(letter, channel)
    finally:
        await connection.close_channel(channel)
    return letter.refused(answer.problem, by_queue=False) if isinstance(answer, ChannelClosed) else answer
