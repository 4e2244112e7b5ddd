"""Settling: telling the broker, once, what becomes of a delivery, on the channel that brought it and on no other.

Delivery tags mean nothing on another channel: sent there, they settle a stranger or close the channel. So a settlement
belongs to one incarnation of the consuming channel. When that is gone the broker has the message back already, and the
settlement is dropped and counted; the redelivery finds what was committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aiormq.channel import Channel
from aiormq.exceptions import ChannelInvalidStateError

from consumers.errors import SettledTwice

Verb: TypeAlias = Literal["ack", "requeue"]

FLUSH_S = 0.1
"""Before a channel is closed: a quorum queue can lose acks that were sent within the last milliseconds."""


@dataclass(slots=True)
class Tally:
    """What happened so far, over all incarnations of one subscription."""

    delivered: int = 0
    acked: int = 0
    requeued: int = 0
    dropped: int = 0
    consumes: int = 0
    server_cancels: int = 0
    failed_receives: int = 0
    stalls: int = 0


class Incarnation:
    """One life of a consuming channel. It ends once, and takes what is unsettled with it.

    :param timeout_s: how long a settlement may wait for a place in the client's queue of outgoing frames.
    """

    def __init__(self, channel: Channel, *, queue: str, timeout_s: float, tally: Tally) -> None:
        self.channel = channel
        self.queue = queue
        self.tally = tally
        self.end: str | None = None
        self.unsettled = 0
        self._timeout_s = timeout_s
        self._settled_at = float("-inf")
        self._loop = asyncio.get_running_loop()

    @property
    def is_over(self) -> bool:
        """Whether nothing can be settled on it any more."""
        return self.end is not None or self.channel.is_closed

    def finish(self, reason: str) -> None:
        """Let nothing be settled from now on. The first reason stays."""
        if self.end is None:
            self.end = reason

    def settlement(self, tag: int) -> Settlement:
        """Return the settlement of a delivery that this channel brought."""
        self.unsettled += 1
        self.tally.delivered += 1
        return Settlement(self, tag)

    async def settle(self, verb: Verb, tag: int) -> bool:
        """Hand a settlement to the client's writer. False: the channel is gone, the settlement is dropped."""
        sent = False
        if not self.is_over:
            sent = await self._send(verb, tag)
        self.unsettled -= 1
        if not sent:
            self.tally.dropped += 1
        elif verb == "ack":
            self.tally.acked += 1
        else:
            self.tally.requeued += 1
        return sent

    async def flushed(self) -> None:
        """Wait until the last settlement is old enough for the channel to be closed."""
        left_s = self._settled_at + FLUSH_S - self._loop.time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def _send(self, verb: Verb, tag: int) -> bool:
        # The writer answers to nobody: after a loss it reads its queue no more, and a frame that finds the queue full
        # would wait for ever. While there is a place, putting a frame there does not wait at all.
        try:
            if not self.channel.connection.write_queue.full():
                await self._put(verb, tag)
            else:
                async with asyncio.timeout(self._timeout_s):
                    await self._put(verb, tag)
        except ChannelInvalidStateError:
            return False
        except TimeoutError:
            self.finish("its connection takes no frames")
            return False
        self._settled_at = self._loop.time()
        return True

    async def _put(self, verb: Verb, tag: int) -> None:
        # Without waiting for the socket: a settlement that gets lost is made good by the redelivery.
        if verb == "ack":
            await self.channel.basic_ack(tag, wait=False)
        else:
            await self.channel.basic_nack(tag, requeue=True, wait=False)


class Settlement:
    """The one settlement of one delivery."""

    __slots__ = ("_incarnation", "_settled", "_tag")

    def __init__(self, incarnation: Incarnation, tag: int) -> None:
        self._incarnation = incarnation
        self._tag = tag
        self._settled: Verb | None = None

    @property
    def settled(self) -> bool:
        """Whether `ack` or `requeue` was called, also if the channel was gone by then."""
        return self._settled is not None

    @property
    def is_void(self) -> bool:
        """Whether the channel is gone, so that the broker has the message back."""
        return self._incarnation.is_over

    async def ack(self) -> bool:
        """Tell the broker that the message is done with.

        :return: False if the channel is gone; the broker delivers the message again.
        :raises SettledTwice: it was settled before.
        """
        return await self._settle("ack")

    async def requeue(self) -> bool:
        """Give the message back to its queue.

        :return: False if the channel is gone; the message is back already.
        :raises SettledTwice: it was settled before.
        """
        return await self._settle("requeue")

    async def _settle(self, verb: Verb) -> bool:
        if self._settled is not None:
            raise SettledTwice(queue=self._incarnation.queue, tag=self._tag, verb=verb, settled=self._settled)
        self._settled = verb
        try:
            return await self._incarnation.settle(verb, self._tag)
        except BaseException:
            # Cancelled while it waited for its place: nothing was sent, so it may be settled yet.
            self._settled = None
            raise
