"""A subscription: deliveries of one queue, for as long as the process wants them, through every loss of the line.

One task, `run`, owns connection and channel; everybody else only says what is wanted and waits until it is so. It
connects, consumes, watches, and builds all of it anew when it ends, with growing pauses. "Consuming" is never
believed: it is what the broker has confirmed, and what a check found a moment ago.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import structlog

from consumers.background import background
from consumers.broker_faults import CHANNEL_CODES, NOT_FOUND
from consumers.connection import Connection, Endpoint, connect
from consumers.consumer_channel import ConsumerChannel, Consuming
from consumers.delivery import Delivery
from consumers.errors import BrokerUnavailable, ChannelLost, TopologyMismatch
from consumers.settlement import Tally
from consumers.subscription_state import SubscriptionState, SubscriptionStatistics, SubscriptionTiming
from consumers.tolerant import install
from inbox import Backoff

log = structlog.get_logger(__name__)

Verify: TypeAlias = Callable[[Connection], Awaitable[None]]
"""Raises TopologyMismatch if the broker does not have what the consumer needs, ChannelLost if it cannot tell."""


_ALARMING = frozenset({SubscriptionState.QUEUE_MISSING, SubscriptionState.TOPOLOGY_MISMATCH})


class _Wanted(enum.IntEnum):
    """What the process wants. It moves downwards only, except back from PAUSED."""

    CONSUMING = 0
    PAUSED = 1
    STOPPED = 2
    CLOSED = 3


class Subscription:
    """The deliveries of one queue.

    :param url: of the broker; never shown.
    :param prefetch: how many deliveries may be unsettled.
    :param receive: called with each delivery, in order, on the event loop; must not block and must not raise.
    :param name: seen in the broker's lists of connections and consumers.
    :param takes_turns: the queue has a single active consumer; others wait for their turn.
    :param verify: called each time before the queue is consumed.
    :param on_change: called with each new state; must not raise.
    """

    def __init__(
        self,
        url: str,
        *,
        queue: str,
        prefetch: int,
        receive: Callable[[Delivery], None],
        name: str,
        takes_turns: bool = False,
        heartbeat_s: float = 10.0,
        connect_timeout_s: float = 10.0,
        operation_timeout_s: float = 10.0,
        timing: SubscriptionTiming | None = None,
        verify: Verify | None = None,
        on_change: Callable[[SubscriptionState], None] | None = None,
    ) -> None:
        if prefetch < 1:
            raise ValueError("prefetch must be at least 1: the broker takes 0 for no limit")
        self._endpoint = Endpoint(
            url=url,
            name=name,
            heartbeat_s=heartbeat_s,
            connect_timeout_s=connect_timeout_s,
            operation_timeout_s=operation_timeout_s,
        )
        self._stirred = asyncio.Event()
        self._changed = asyncio.Event()
        self._tally = Tally()
        self._consuming = Consuming(
            queue=queue,
            name=name,
            prefetch=prefetch,
            receive=receive,
            takes_turns=takes_turns,
            tally=self._tally,
            stir=self._stirred.set,
        )
        self._timing = timing or SubscriptionTiming()
        self._pauses = Backoff(first_s=self._timing.first_pause_s, longest_s=self._timing.longest_pause_s)
        self._verify = verify
        self._on_change = on_change
        self._log = log.bind(queue=queue, subscription=name)
        self._wanted = _Wanted.CONSUMING
        self._cancel_timeout_s = operation_timeout_s
        self._running = False
        self._state = SubscriptionState.CONNECTING
        self._channel: ConsumerChannel | None = None
        self._patience: tuple[_Wanted, asyncio.Timeout] | None = None

    @property
    def state(self) -> SubscriptionState:
        """What it does now."""
        return self._state

    @property
    def consuming(self) -> bool:
        """Whether the broker has confirmed the consumer and nothing speaks against it since."""
        channel = self._channel
        return self._state is SubscriptionState.CONSUMING and channel is not None and channel.problem() is None

    def statistics(self) -> SubscriptionStatistics:
        """Return what it has seen so far."""
        tally, channel = self._tally, self._channel
        return SubscriptionStatistics(
            delivered=tally.delivered,
            unsettled=0 if channel is None or channel.incarnation.is_over else channel.incarnation.unsettled,
            acked=tally.acked,
            requeued=tally.requeued,
            dropped_settlements=tally.dropped,
            consumes=tally.consumes,
            server_cancels=tally.server_cancels,
            failed_receives=tally.failed_receives,
            stalls=tally.stalls,
        )

    async def run(self) -> None:
        """Consume until `close`, or until cancelled, which closes in the same order.

        :raises ClientUnsupported: the installed AMQP client cannot be made to pass on what it cannot decode.
        """
        install()
        self._running = True
        try:
            while self._wanted <= _Wanted.PAUSED:
                await self._connected()
        finally:
            self._running = False
            self._become(SubscriptionState.CLOSED)

    async def stop(self, deadline_s: float) -> bool:
        """Take no more deliveries; the channel stays, so that those at hand can be settled.

        :return: whether the broker confirmed it within the deadline. If not, the channel is given up; no delivery
            comes all the same, and what is unsettled goes back to the broker.
        """
        self._cancel_timeout_s = deadline_s
        self._want(_Wanted.STOPPED)
        channel = self._channel
        if channel is None:
            return True
        await self._until(lambda: channel.cancelled or channel.incarnation.is_over, deadline_s)
        if not channel.cancelled:
            channel.incarnation.finish("its consumer could not be cancelled in time")
        return channel.cancelled

    async def close(self) -> None:
        """End channel and connection, 100 ms after the last settlement; within five seconds, whatever the peer does."""
        self._want(_Wanted.CLOSED)
        await self._until(lambda: False)

    async def pause(self) -> None:
        """Give back to the broker what is unsettled, and consume no more until `resume`.

        Settlements of what was at hand are void from then on.
        """
        self._want(_Wanted.PAUSED)
        await self._until(lambda: self._channel is None or self._wanted is not _Wanted.PAUSED)

    def resume(self) -> None:
        """Consume again after `pause`."""
        if self._wanted is _Wanted.PAUSED:
            self._wanted = _Wanted.CONSUMING
            self._stirred.set()

    def _want(self, wanted: _Wanted) -> None:
        self._wanted = max(self._wanted, wanted)
        self._stirred.set()
        if self._patience is not None and self._wanted >= self._patience[0]:
            self._patience[1].reschedule(asyncio.get_running_loop().time())
            self._patience = None

    @asynccontextmanager
    async def _unless(self, wanted: _Wanted) -> AsyncIterator[None]:
        """Give up what is awaited inside as soon as this is wanted; what follows the block then sees it undone."""
        try:
            async with asyncio.timeout(0 if self._wanted >= wanted else None) as patience:
                self._patience = (wanted, patience)
                yield
        except TimeoutError:
            if self._wanted < wanted:
                raise
        finally:
            self._patience = None

    async def _until(self, is_so: Callable[[], bool], deadline_s: float | None = None) -> None:
        """Wait until something is so, or `run` has ended, or the deadline has come."""
        try:
            async with asyncio.timeout(deadline_s):
                while self._running and not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def _become(self, state: SubscriptionState) -> None:
        changed = state is not self._state
        self._state = state
        self._changed.set()
        if changed and self._on_change is not None:
            self._on_change(state)

    async def _connected(self) -> None:
        """One connection, from the first try to its end, and the pause after it."""
        self._become(SubscriptionState.CONNECTING)
        connection = None
        try:
            async with self._unless(_Wanted.STOPPED):
                connection = await connect(self._endpoint)
        except BrokerUnavailable as error:
            await self._pause_after(SubscriptionState.WAITING, error)
        if connection is None:
            return
        connection.on_loss(self._stirred.set)
        try:
            while self._wanted <= _Wanted.PAUSED and not connection.is_lost:
                if self._wanted is _Wanted.PAUSED:
                    self._become(SubscriptionState.PAUSED)
                    await self._stir()
                else:
                    await self._consumed(connection)
            loss = connection.loss
        finally:
            await connection.close()
        if loss is not None:
            await self._pause_after(SubscriptionState.WAITING, loss)

    async def _consumed(self, connection: Connection) -> None:
        """One life of the consuming channel, and the pause after it unless the connection is lost too."""
        state = SubscriptionState.WAITING
        error: ChannelLost | TopologyMismatch | None = None
        try:
            await self._on_channel(connection)
        except TopologyMismatch as mismatch:
            missing = self._consuming.queue in mismatch.missing
            state = SubscriptionState.QUEUE_MISSING if missing else SubscriptionState.TOPOLOGY_MISMATCH
            error = mismatch
        except ChannelLost as lost:
            if lost.code not in CHANNEL_CODES:
                await connection.drop(lost)
                return
            if lost.code == NOT_FOUND:
                state = SubscriptionState.QUEUE_MISSING
            error = lost
        if self._wanted is _Wanted.CONSUMING and not connection.is_lost:
            await self._pause_after(state, error)

    async def _on_channel(self, connection: Connection) -> None:
        channel = None
        async with self._unless(_Wanted.PAUSED):
            if self._verify is not None:
                await self._verify(connection)
            channel = await ConsumerChannel.open(connection, self._consuming)
        if channel is None:
            return
        # From here on `stop` has a channel to wait for: deliveries come before `consume` has returned.
        self._channel = channel
        try:
            if self._wanted is _Wanted.CONSUMING:
                async with self._unless(_Wanted.CLOSED):
                    await channel.consume()
                await self._watched(connection, channel)
            if self._wanted <= _Wanted.PAUSED:
                await channel.close()
        finally:
            channel.incarnation.finish("the channel was given up")
            self._channel = None
            self._changed.set()

    async def _watched(self, connection: Connection, channel: ConsumerChannel) -> None:
        """Return when this life of the channel is over: it is lost, or no longer wanted."""
        timing, loop = self._timing, asyncio.get_running_loop()
        began = loop.time()
        self._tally.consumes += 1
        self._become(SubscriptionState.CONSUMING)
        self._log.info("subscription.consuming", prefetch=self._consuming.prefetch, tag=channel.tag)
        try:
            async with background() as start:
                start(
                    "probe",
                    channel.probe(
                        every_s=timing.probe_every_s,
                        timeout_s=timing.probe_timeout_s,
                        stalled_after_s=timing.stalled_after_s,
                    ),
                )
                while not connection.is_lost and self._wanted not in (_Wanted.PAUSED, _Wanted.CLOSED):
                    problem = channel.problem()
                    if problem is not None:
                        self._log.warning("subscription.lost", problem=problem)
                        return
                    if self._wanted is _Wanted.STOPPED and not channel.cancelled:
                        await channel.cancel(self._cancel_timeout_s)
                        self._become(SubscriptionState.STOPPED)
                    else:
                        await self._stir(timing.check_every_s)
        finally:
            if loop.time() - began > timing.stable_s:
                self._pauses.reset()
            if not connection.is_lost:
                await channel.incarnation.flushed()

    async def _pause_after(
        self, state: SubscriptionState, error: BrokerUnavailable | ChannelLost | TopologyMismatch | None
    ) -> None:
        pause_s = self._pauses.next_s()
        if error is not None:
            say = self._log.error if state in _ALARMING else self._log.warning
            say(f"subscription.{state.name.lower()}", problem=str(error), next_try_s=round(pause_s, 3))
        self._become(state)
        until = asyncio.get_running_loop().time() + pause_s
        while self._wanted is _Wanted.CONSUMING and (left_s := until - asyncio.get_running_loop().time()) > 0:
            await self._stir(left_s)

    async def _stir(self, at_most_s: float | None = None) -> None:
        """Wait until something has happened that `run` must look at."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._stirred.wait()
        except TimeoutError:
            return
        self._stirred.clear()
