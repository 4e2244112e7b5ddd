"""A settlement happens once, on its own channel, and never holds up or fails the lane that settles."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiormq.exceptions import ChannelInvalidStateError

from consumers.delivery import Delivery
from consumers.errors import SettledTwice
from consumers.settlement import FLUSH_S, Incarnation, Tally


class Channel:
    """As much of the client's channel as a settlement uses: frames wait in a queue, a closed channel refuses them."""

    def __init__(self, places: int = 0) -> None:
        self.connection = SimpleNamespace(write_queue=asyncio.Queue(maxsize=places))
        self.is_closed = False

    async def basic_ack(self, tag: int, *, wait: bool) -> None:
        assert not wait
        await self._put(("ack", tag))

    async def basic_nack(self, tag: int, *, requeue: bool, wait: bool) -> None:
        assert requeue
        assert not wait
        await self._put(("requeue", tag))

    async def _put(self, frame: tuple[str, int]) -> None:
        if self.is_closed:
            raise ChannelInvalidStateError
        await self.connection.write_queue.put(frame)

    @property
    def sent(self) -> list[Any]:
        return list(self.connection.write_queue._queue)


def incarnation(channel: Channel, *, timeout_s: float = 5.0) -> Incarnation:
    return Incarnation(channel, queue="orders", timeout_s=timeout_s, tally=Tally())  # type: ignore[arg-type]


async def test_each_delivery_is_settled_on_its_own_tag_and_counted() -> None:
    channel = Channel()
    life = incarnation(channel)
    first, second = life.settlement(1), life.settlement(2)

    assert await second.requeue()
    assert await first.ack()

    assert channel.sent == [("requeue", 2), ("ack", 1)]
    assert (first.settled, life.unsettled) == (True, 0)
    assert life.tally == Tally(delivered=2, acked=1, requeued=1)


@pytest.mark.parametrize(("first", "second"), [("ack", "ack"), ("ack", "requeue"), ("requeue", "ack")])
async def test_settling_twice_is_an_error_that_sends_nothing(first: str, second: str) -> None:
    channel = Channel()
    settlement = incarnation(channel).settlement(7)
    await getattr(settlement, first)()

    with pytest.raises(SettledTwice, match=f"delivery 7 of queue orders cannot be settled by {second}: {first} was"):
        await getattr(settlement, second)()

    assert channel.sent == [(first, 7)]


async def test_a_settlement_of_a_finished_incarnation_is_dropped_and_counted() -> None:
    channel = Channel()
    life = incarnation(channel)
    settlement = life.settlement(1)
    life.finish("the channel was given up")

    assert settlement.is_void
    assert not await settlement.ack()
    assert settlement.settled
    assert channel.sent == []
    assert (life.tally.dropped, life.tally.acked, life.unsettled) == (1, 0, 0)


async def test_a_channel_that_closes_in_that_moment_drops_the_settlement() -> None:
    channel = Channel()
    life = incarnation(channel)
    settlement = life.settlement(1)

    async def refused(tag: int, *, wait: bool) -> None:
        raise ChannelInvalidStateError

    channel.basic_ack = refused  # type: ignore[method-assign]

    assert not await settlement.ack()
    assert life.tally.dropped == 1


async def test_a_writer_that_takes_no_frames_is_waited_for_and_then_given_up() -> None:
    channel = Channel(places=1)
    life = incarnation(channel, timeout_s=0.05)
    first, second, third = life.settlement(1), life.settlement(2), life.settlement(3)
    await first.ack()

    assert not await second.ack()

    assert life.end == "its connection takes no frames"
    assert not await third.ack()
    assert life.tally.dropped == 2


async def test_a_settlement_cancelled_while_it_waits_for_its_place_can_be_made_again() -> None:
    channel = Channel(places=1)
    life = incarnation(channel)
    first, second = life.settlement(1), life.settlement(2)
    await first.ack()
    waiting = asyncio.ensure_future(second.ack())
    await asyncio.wait([waiting], timeout=0.01)
    assert second.settled

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not second.settled
    channel.connection.write_queue.get_nowait()
    assert await second.requeue()
    assert channel.sent == [("requeue", 2)]
    assert life.unsettled == 0


async def test_a_channel_may_be_closed_some_time_after_the_last_settlement_and_no_earlier() -> None:
    life = incarnation(Channel())
    loop = asyncio.get_running_loop()
    began = loop.time()
    await life.flushed()
    assert loop.time() - began < FLUSH_S, "nothing was settled, so there is nothing to wait for"

    await life.settlement(1).ack()
    began = loop.time()
    await life.flushed()

    assert loop.time() - began >= FLUSH_S * 0.9


async def test_a_delivery_shows_neither_body_nor_properties() -> None:
    delivery = Delivery(
        body=b"secret body",
        properties=b"secret properties",
        fault=None,
        exchange="shop",
        routing_key="order.placed",
        redelivered=False,
        queue="orders",
        settlement=incarnation(Channel()).settlement(1),
    )

    assert "secret" not in repr(delivery)
    assert "order.placed" in repr(delivery)
