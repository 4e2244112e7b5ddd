"""Process starts of a small fleet: two lanes each, everything in them real but the broker, the line and the probe."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Any

from consumers import Consumer, Envelope, Tx
from consumers.config.settings import ConsumerSettings
from consumers.delivery import Delivery
from consumers.lane import Lane, LaneTools
from consumers.oversize import Oversize
from consumers.parking import Parking
from consumers.plan import ConsumerPlan
from consumers.resources import Resources
from consumers.telemetry import Telemetry
from inbox import Debts, Inbox, Member
from pools import Pool, PoolSpec, SessionSettings
from tests.invariants.broker import Broker, Channel, Copy, ParkingPublisher
from tests.invariants.facts import Facts
from tests.invariants.line import Line
from tests.invariants.script import Verdict, perform
from tests.invariants.stage import BREAKER, HANDLER, IDLE, Actor, Stage, WatchedCompany, acting, play
from tests.invariants.terms import CONSUMER, CONTENTION_S, EXPIRY_S, HURRIED, LANES, POLICIES, QUEUE, key_of, type_of
from tests.support.ledger import INSERT

ENDED_WITHIN_S = 30.0

_SESSION = SessionSettings.for_handlers(3600.0)


@dataclass(frozen=True, slots=True)
class PoolPair:
    """The pools of one process: for its lanes, and for its housekeeping."""

    lanes: Pool
    own: Pool


class Shelf:
    """Open pools, to be used again by the processes of the next example.

    :param url: of the database.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[PoolPair] = []
        self._numbers = itertools.count()

    async def take(self) -> PoolPair:
        """Return pools that nobody uses."""
        if self._free:
            return self._free.pop()
        name = f"process-{next(self._numbers)}"
        pair = PoolPair(
            Pool(self._url, PoolSpec(name=name, application_name=name, headroom=20, session=_SESSION)),
            Pool(self._url, PoolSpec(name=f"{name}-own", application_name=f"{name}-own", session=_SESSION)),
        )
        await pair.lanes.open()
        await pair.own.open()
        return pair

    def give_back(self, pair: PoolPair) -> None:
        """Put pools back, with every connection that was taken from them."""
        for pool in (pair.lanes, pair.own):
            assert pool.statistics().in_use == 0, f"connections of {pool.name} were never given back"
        self._free.append(pair)

    async def close(self) -> None:
        """Close them."""
        for pair in self._free:
            await pair.lanes.close(1.0)
            await pair.own.close(1.0)


class Gate:
    """In place of the breaker: what opened stays open until it is closed by hand. Lanes go on one after the other."""

    def __init__(self) -> None:
        self.is_open = False
        self._released = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def open(self, reason: str, *, by_handler: bool = False) -> None:
        """As the breaker's."""
        self.is_open = True

    def served(self) -> None:
        """As the breaker's: no attempt is a trial here."""

    async def closed(self) -> bool:
        """As the breaker's: False if it is open and the process stops, or if it was opened again meanwhile."""
        actor = acting()
        assert actor is not None
        if self.is_open and not self._released:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            with actor.standing(BREAKER):
                await waiter
        return not self.is_open

    def close(self) -> None:
        """Let attempts start again: a probe has passed."""
        self.is_open = False

    def release(self) -> None:
        """As the breaker's: the process stops."""
        self._released = True

    def next(self) -> bool:
        """Let the next lane that waits go on. Return whether there was one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return True
        return False


class _Deliveries(asyncio.Queue[Delivery | None]):
    """A lane's queue; the stage sees that its lane is idle."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self._actor = actor

    async def get(self) -> Delivery | None:
        with self._actor.standing(IDLE):
            return await super().get()


class ProcessStart:
    """One process start.

    :param pools: its own as long as it lives.
    :param facts: told of every start of a handler and of every answer.
    :param released: lets stuck handlers go.
    """

    def __init__(
        self,
        pools: PoolPair,
        *,
        stage: Stage,
        broker: Broker,
        telemetry: Telemetry,
        facts: Facts,
        released: asyncio.Event,
    ) -> None:
        self.name = pools.lanes.name
        self.pools = pools
        self.broker = broker
        self.stage = stage
        self.silent = False
        self.member = Member(service="test", expiry_s=EXPIRY_S)
        self.channel = Channel(broker)
        self.breaker = Gate()
        self._facts = facts
        self._released = released
        self.line = Line(pools.lanes, stage, facts.witness)
        self._own_line: Any = Line(pools.own, stage, facts.witness)
        self.debts = Debts(self._own_line)
        line: Any = self.line
        self.inbox = Inbox(pool=line, member_id=self.member.id, company=WatchedCompany(), debts=self.debts)
        consumer = Consumer(CONSUMER)
        consumer.on("*")(self._handle)
        plan = ConsumerPlan(
            settings=ConsumerSettings(
                name=CONSUMER, queue=QUEUE, handler="tests:billing", contention_step_s=CONTENTION_S
            ),
            consumer=consumer,
            policies=POLICIES,
            exhaustion_policy=POLICIES["*"],
        )
        self.publisher = ParkingPublisher(broker, plan.parking_steps_s)
        publisher: Any = self.publisher
        breaker: Any = self.breaker
        told = telemetry.consumer(CONSUMER, queue=QUEUE)
        tools = LaneTools(
            plan=plan,
            routes=consumer.resolve(Resources(CONSUMER)),
            inbox=self.inbox,
            parking=Parking(
                QUEUE,
                steps_s=plan.parking_steps_s,
                contention_s=CONTENTION_S,
                publisher=publisher,
                publish_timeout_s=60.0,
            ),
            oversize=Oversize(plan, publisher=publisher, publish_timeout_s=60.0, telemetry=told),
            breaker=breaker,
            telemetry=told,
        )
        self.actors = [stage.actor(f"{self.name}/{lane}") for lane in range(LANES)]
        self._queues = [_Deliveries(actor) for actor in self.actors]
        self._lanes = [Lane(tools, queue) for queue in self._queues]
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Register, and start the lanes."""
        await self.member.register(self._own_line)
        for actor, lane in zip(self.actors, self._lanes, strict=True):
            self.tasks.append(asyncio.get_running_loop().create_task(play(actor, lane.run())))

    def deliver(self, copy: Copy, actor: Actor, *, points: int | None, verdict: Verdict | None) -> None:
        """Hand a copy to an idle lane."""
        delivery = self.channel.deliver(copy)
        hurried = type_of(copy.message_id) == HURRIED
        actor.starts(key_of(copy.message_id), points, verdict, copy=copy, is_hurried=hurried)
        self._queues[self.actors.index(actor)].put_nowait(delivery)

    def lose_channel(self) -> None:
        """Lose the consuming channel, and consume on another one."""
        self.channel.lose()
        self.channel = Channel(self.broker)

    async def die(self, *, lingers: bool) -> None:
        """Be killed: nothing in this process runs any more, and nobody says goodbye.

        :param lingers: the server does not notice it yet.
        """
        self.channel.lose()
        self.line.dead = True
        for actor in self.actors:
            actor.frozen = True
            session = self.line.used.get(actor.name)
            if session is not None:
                self.line.orphan(session)
        if not lingers:
            for session in list(self.line.orphans):
                self.line.end(session)

    async def stop(self, *, cuts: bool) -> None:
        """Stop in order, as a worker and its process do.

        :param cuts: lanes in the middle of a statement do not make it until the deadline.
        """
        for queue in self._queues:
            queue.put_nowait(None)
        self.breaker.release()
        self.inbox.runner.give_up()
        await self._until_ended(cuts=cuts)
        await self.debts.settle()
        await self.member.stop(self._own_line)
        self.channel.lose()

    async def close(self) -> None:
        """End what is left of it, at the end of an example; its pools can be used again then."""
        for actor in self.actors:
            actor.frozen = False
        for task in self.tasks:
            task.cancel()
        await self._until_ended(cuts=True)
        for session in list(self.line.orphans):
            self.line.end(session)

    async def _until_ended(self, *, cuts: bool) -> None:
        """Push lanes on their way, one after the other, until all have ended."""
        deadline = monotonic() + ENDED_WITHIN_S
        while not all(task.done() for task in self.tasks):
            assert monotonic() < deadline, f"{self.name} does not end: {self.actors}"
            for actor, task in zip(self.actors, self.tasks, strict=True):
                if cuts and actor.at != HANDLER and not task.done():
                    task.cancel()
                if actor.is_held:
                    actor.go()
                await asyncio.wait({task}, timeout=0.002)
            self.breaker.next()

    def fault(self) -> BaseException | None:
        """Return what ended a lane that should run, or None."""
        for task in self.tasks:
            if task.done() and not task.cancelled():
                return task.exception()
        return None

    async def _handle(self, envelope: Envelope, tx: Tx) -> None:
        actor = acting()
        assert actor is not None
        session = self.line.used[actor.name]
        assert actor.copy is not None
        await self._facts.started(envelope.message.key, envelope.attempt.claim_id, actor.copy, lives=session.lives)
        await tx.execute(INSERT, envelope.id, envelope.attempt.number, str(envelope.attempt.claim_id))
        if actor.verdict is None and envelope.type == HURRIED:
            actor.verdict = Verdict.OVERRUN  # its time runs whether its lane rests or not
        if actor.verdict is None:
            await actor.rests(HANDLER)
        verdict = actor.verdict
        assert verdict is not None
        self._facts.answered(envelope.attempt.claim_id, verdict)
        if verdict is not Verdict.DEADLOCK:  # that one happens again in each re-run
            actor.verdict = None
        await perform(verdict, tx, self._released)
