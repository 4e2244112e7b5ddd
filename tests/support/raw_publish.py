"""Publishing what no library would: any bytes as a property list, and as a routing key.

The broker passes on what it can parse, so a consumer meets what some sender's library has made.
"""

from __future__ import annotations

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from pamqp import commands
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from tests.support.vhosts import Vhost


class RawList(commands.Basic.Properties):
    """Any bytes as properties."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(message_id="for the client alone")
        self.raw = raw

    def marshal(self) -> bytes:
        """Return the bytes."""
        return self.raw


class _RawPublish(commands.Basic.Publish):
    """A publish whose routing key is any bytes."""

    def __init__(self, exchange: str, routing_key: bytes) -> None:
        super().__init__(exchange=exchange, routing_key="k")
        self._raw_key = routing_key

    def marshal(self) -> bytes:
        exchange = self.exchange.encode()
        names = b"".join(bytes((len(name),)) + name for name in (exchange, self._raw_key))
        return b"\0\0" + names + b"\0"


async def publish_raw(
    vhost: Vhost, properties: bytes, body: bytes, *, exchange: str = "", routing_key: str = "work"
) -> None:
    """Publish a message with this property list, byte for byte; mandatory and confirmed."""
    underlay = await (await vhost.channel()).get_underlay_channel()
    await underlay.basic_publish(
        body, exchange=exchange, routing_key=routing_key, properties=RawList(properties), mandatory=True, timeout=10
    )


async def publish_by_raw_key(
    vhost: Vhost, properties: bytes, body: bytes, *, exchange: str, routing_key: bytes
) -> None:
    """Publish a message by a routing key of any bytes. Nobody confirms it: the test waits for what comes of it."""
    underlay = await (await vhost.channel()).get_underlay_channel()
    assert isinstance(underlay, Channel)  # the abstract class does not tell where its frames go
    header = ContentHeader(properties=RawList(properties), body_size=len(body))
    frames: list[Frame | ContentHeader | ContentBody] = [_RawPublish(exchange, routing_key), header, ContentBody(body)]
    await underlay.write_queue.put(ChannelFrame.marshall(channel_number=underlay.number, frames=frames))
