"""One example: a broker, two processes at a time, and everything that can happen to them.

A process that dies or stops is replaced by a new start at once. Every method leaves the world at rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from consumers.telemetry import Telemetry
from tests.invariants.broker import Broker
from tests.invariants.facts import Facts
from tests.invariants.fleet import ProcessStart, Shelf
from tests.invariants.line import Fate, Session
from tests.invariants.script import Verdict
from tests.invariants.stage import BREAKER, DOOR, HANDLER, IDLE, Actor, Stage
from tests.invariants.terms import CONTENTION_S, EXPIRY_S, HURRIED, SENDERS, key_of, type_of
from tests.invariants.witness import Witness
from tests.support.inboxes import at_rest

T = TypeVar("T")

PROCESSES = 2
MAX_COPIES = 3
_ROUNDS = 200
_ENDLESS = (Verdict.OVERRUN, Verdict.STUCK)


class World:
    """What a state machine plays with.

    :param witness: the database, prepared.
    """

    def __init__(self, witness: Witness, telemetry: Telemetry, shelf: Shelf) -> None:
        self.broker = Broker()
        self.facts = Facts(witness, self.broker.sent)
        self.stage = Stage()
        self.processes: list[ProcessStart] = []
        self._gone: list[ProcessStart] = []
        self._messages = [f"{kind}-{number}-0" for number, kind in enumerate(SENDERS)]
        self._witness = witness
        self._telemetry = telemetry
        self._shelf = shelf
        self._released = asyncio.Event()
        self._doors: list[tuple[ProcessStart, UUID]] = []

    async def begin(self) -> None:
        """Empty the database and start the processes."""
        await self._witness.forget()
        for _ in range(PROCESSES):
            self.processes.append(await self._start())
        await self.stage.quiet()

    # What there is to choose from.

    def idle(self) -> list[Actor]:
        """Lanes that could take a delivery."""
        return [actor for process in self.processes for actor in process.actors if actor.at == IDLE]

    def held(self) -> list[Actor]:
        """Lanes that rest at a point of an attempt and wait to be moved."""
        return [a for process in self.processes for a in process.actors if a.is_held and a.at != HANDLER]

    def handling(self) -> list[Actor]:
        """Lanes whose handlers wait to be told how to end."""
        return [a for process in self.processes for a in process.actors if a.is_held and a.at == HANDLER]

    def at_work(self) -> list[ProcessStart]:
        """Processes that are in the middle of something, or owe something."""
        return [
            process
            for process in self.processes
            if process.debts.count or any(actor.at != IDLE for actor in process.actors)
        ]

    def consuming(self) -> list[ProcessStart]:
        """Processes whose channels hold copies."""
        return [process for process in self.processes if process.channel.unsettled]

    def confirmed(self) -> list[ProcessStart]:
        """Processes at work whose next confirm is not doomed yet."""
        return [process for process in self.at_work() if not process.publisher.loses_confirm]

    def heard(self) -> list[ProcessStart]:
        """Processes at work whose heartbeats arrive."""
        return [process for process in self.at_work() if not process.silent]

    def silent(self) -> list[ProcessStart]:
        """Processes whose heartbeats get lost."""
        return [process for process in self.processes if process.silent]

    def owing(self) -> list[ProcessStart]:
        """Processes with debts."""
        return [process for process in self.processes if process.debts.count]

    def paused(self) -> list[ProcessStart]:
        """Processes whose breakers are open."""
        return [process for process in self.processes if process.breaker.is_open]

    def waits(self) -> bool:
        """Whether anything waits for time to pass."""
        parked = any(copy.until_s is not None for copy in self.broker.copies)
        return parked or bool(self._gone) or bool(self.silent())

    def senders(self) -> list[int]:
        """Senders that have not sent enough copies yet."""
        return [
            number
            for number, message_id in enumerate(self._messages)
            if self.broker.sent[message_id] < MAX_COPIES or self._is_over(message_id)
        ]

    def sessions(self) -> list[tuple[ProcessStart, Session]]:
        """Sessions in the hands of lanes that are held, as yet unharmed."""
        held = {actor.name for actor in (*self.held(), *self.handling())}
        return [
            (process, session)
            for process in self.processes
            for name, session in sorted(process.line.used.items())
            if name in held and session.lives
        ]

    def late(self) -> list[tuple[ProcessStart, Session]]:
        """Sessions without a client on which a statement is still under way, and would not wait at a door."""
        return [
            (process, session)
            for process, session in self.orphans()
            if session.pending is not None and not process.line.has_closed_doors
        ]

    def orphans(self) -> list[tuple[ProcessStart, Session]]:
        """Sessions that have no client any more."""
        return [(process, session) for process in (*self.processes, *self._gone) for session in process.line.orphans]

    def doors(self) -> list[tuple[ProcessStart, UUID]]:
        """Doors that are closed."""
        return self._doors

    # What can happen.

    async def send(self, sender: int) -> None:
        """A sender publishes its message once more, or its next one if that has ended everywhere."""
        number = _nth(self.senders(), sender)
        message_id = self._messages[number]
        if self._is_over(message_id):
            kind, _, count = message_id.rpartition("-")
            message_id = self._messages[number] = f"{kind}-{int(count) + 1}"
        self.broker.send(message_id, type_of(message_id))

    async def deliver(
        self, copy: int, lane: int, *, points: int | None, verdict: Verdict | None, door: bool = False
    ) -> None:
        """A lane takes a copy, and goes as far as it is told.

        :param door: it has to wait in its claim right before the lock.
        """
        chosen, actor = _nth(self.broker.ready, copy), _nth(self.idle(), lane)
        process = self._process_of(actor)
        if (process, key_of(chosen.message_id)) in self._doors:
            return  # two of one process at the same door: which one is first then would be anybody's guess
        if door:
            await self._close_door(process, key_of(chosen.message_id))
        if verdict in _ENDLESS and type_of(chosen.message_id) != HURRIED:
            verdict = None
        process.deliver(chosen, actor, points=points, verdict=verdict)
        await self.stage.quiet()

    async def go(self, lane: int, *, points: int | None) -> None:
        """A held lane goes on."""
        _nth(self.held(), lane).go(points)
        await self.stage.quiet()

    async def answer(self, lane: int, verdict: Verdict, *, points: int | None) -> None:
        """A handler ends, and its lane goes on."""
        actor = _nth(self.handling(), lane)
        actor.verdict = Verdict.FAIL if verdict in _ENDLESS else verdict
        actor.go(points)
        await self.stage.quiet()

    async def kill(self, session: int) -> None:
        """An administrator ends a session."""
        process, chosen = _nth(self.sessions(), session)
        await process.line.kill(chosen)
        await self.stage.quiet()

    async def cut(self, session: int, fate: Fate) -> None:
        """The line of a session is lost."""
        _, chosen = _nth(self.sessions(), session)
        chosen.cut(fate)

    async def orphan_executes(self, orphan: int) -> None:
        """What was under way on a session without a client reaches the server."""
        process, session = _nth(self.late(), orphan)
        await process.line.execute(session)

    async def orphan_ends(self, orphan: int) -> None:
        """The server notices that a session has no client."""
        process, session = _nth(self.orphans(), orphan)
        process.line.end(session)
        await self.stage.quiet()

    async def lose_confirm(self, process: int) -> None:
        """The next copy that a process parks gets there, and its confirm does not come back."""
        _nth(self.confirmed(), process).publisher.loses_confirm = True

    async def lose_channel(self, process: int) -> None:
        """A consuming channel is lost, its process lives."""
        _nth(self.consuming(), process).lose_channel()

    async def die(self, process: int, *, lingers: bool) -> None:
        """A process is killed."""
        victim = _nth(self.at_work(), process)
        self.facts.may_be_dead.add(victim.member.id)
        if sum(actor.is_attempting for actor in victim.actors) > 1:
            self.facts.died_in_company.add(victim.member.id)
        await victim.die(lingers=lingers)
        await self._replace(victim)

    async def stop(self, process: int, *, cuts: bool) -> None:
        """A process stops in order."""
        leaver = _nth(self.at_work(), process)
        await self._open_doors(leaver)
        await leaver.stop(cuts=cuts)
        await self.stage.quiet()
        await self.facts.check()
        self.facts.stopped.add(leaver.member.id)
        await self._replace(leaver)

    async def fall_silent(self, process: int, *, lingers: bool) -> None:
        """Heartbeats of a process get lost from now on; perhaps ends of sessions too."""
        chosen = _nth(self.heard(), process)
        chosen.silent, chosen.line.lingers = True, lingers
        self.facts.may_be_dead.add(chosen.member.id)

    async def be_heard(self, process: int) -> None:
        """They arrive again."""
        await self._hear(_nth(self.silent(), process))

    async def pay(self, process: int) -> None:
        """A process tries to settle its debts."""
        await _nth(self.owing(), process).debts.settle()

    async def pass_time(self, seconds: float) -> None:
        """Time passes; whoever lives and is heard sends heartbeats."""
        alive = [process.member.id for process in self.processes if not process.silent]
        await self._witness.pass_time(seconds, alive)
        self.broker.pass_time(seconds)

    async def outage(self, process: int) -> None:
        """No heartbeat arrives for longer than its expiry; then one process sends its own, and nobody else has yet."""
        await self._witness.pass_time(EXPIRY_S + 1.0, [])
        self.broker.pass_time(EXPIRY_S + 1.0)
        await self._witness.pass_time(0.0, [_nth(self.processes, process).member.id])

    async def close_breaker(self, process: int) -> None:
        """A probe succeeds."""
        chosen = _nth(self.paused(), process)
        await self._probe(chosen)

    async def open_door(self, door: int) -> None:
        """A claim that waited right before the lock goes on."""
        await self._open_door(_nth(self._doors, door))

    # The end.

    async def calm_down(self) -> None:
        """Let everything run to its end without further faults, and assert that there is nothing left."""
        for door in list(self._doors):
            await self._open_door(door)
        for process, session in self.orphans():
            process.line.end(session)
        for process in self.processes:
            await self._hear(process)
        await self.pass_time(EXPIRY_S + 1.0)
        for _ in range(_ROUNDS):
            await self._calm_round()
            await self.facts.check()
            if not self.broker.copies and len(self.idle()) == sum(len(process.actors) for process in self.processes):
                break
            if not self.broker.ready:
                await self.pass_time(self.broker.next_return_s() or CONTENTION_S)
        assert not self.broker.copies, f"a copy is stuck: {self.broker.copies}"
        assert not any(process.debts.count for process in self.processes), "a debt is stuck"
        await self.facts.check_ends()
        await at_rest(self._witness.database)

    async def close(self) -> None:
        """End all processes, whatever state they are in."""
        self._released.set()
        for door in list(self._doors):
            await self._open_door(door)
        for process in (*self.processes, *self._gone):
            await process.close()
        await self.stage.quiet()
        for process in (*self.processes, *self._gone):
            self._shelf.give_back(process.pools)

    async def _calm_round(self) -> None:
        while self.held():
            await self.go(0, points=None)
        while self.handling():
            await self.answer(0, Verdict.SUCCEED, points=None)
        for process in self.processes:
            for session in list(process.line.orphans):
                process.line.end(session)
            await self.stage.quiet()
            await process.debts.settle()
            if process.breaker.is_open:
                await self._probe(process)
        while self.broker.ready and self.idle():
            await self.deliver(0, 0, points=None, verdict=Verdict.SUCCEED)

    async def _start(self) -> ProcessStart:
        process = ProcessStart(
            await self._shelf.take(),
            stage=self.stage,
            broker=self.broker,
            telemetry=self._telemetry,
            facts=self.facts,
            released=self._released,
        )
        await process.start()
        return process

    async def _replace(self, gone: ProcessStart) -> None:
        self._gone.append(gone)
        self.processes[self.processes.index(gone)] = await self._start()
        await self.stage.quiet()

    async def _hear(self, process: ProcessStart) -> None:
        process.silent = process.line.lingers = False
        await self.pass_time(0.0)
        self.facts.may_be_dead.discard(process.member.id)

    async def _probe(self, process: ProcessStart) -> None:
        process.breaker.close()
        waiting = sum(actor.at == BREAKER for actor in process.actors)
        for _ in range(waiting):
            process.breaker.next()
            await self.stage.quiet()

    async def _close_door(self, process: ProcessStart, key: UUID) -> None:
        await self._witness.close_door(process.name, key)
        self._doors.append((process, key))
        process.line.has_closed_doors = True

    async def _open_door(self, door: tuple[ProcessStart, UUID]) -> None:
        process, key = door
        self._doors.remove(door)
        await self._witness.open_door(process.name, key)
        for actor in process.actors:
            if actor.at == DOOR and actor.key == key:
                actor.at = None
        await self.stage.quiet()
        process.line.has_closed_doors = any(other is process for other, _ in self._doors)

    async def _open_doors(self, process: ProcessStart) -> None:
        for door in list(self._doors):
            if door[0] is process:
                await self._open_door(door)

    def _is_over(self, message_id: str) -> bool:
        left = any(copy.message_id == message_id for copy in self.broker.copies)
        return message_id in self.facts.ended and not left

    def _process_of(self, lane: Actor) -> ProcessStart:
        return next(process for process in self.processes if lane in process.actors)


def _nth(things: Sequence[T], number: int) -> T:
    """Return one of several by a number that may be larger: the choice does not depend on how many there are."""
    return things[number % len(things)]
