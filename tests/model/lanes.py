"""A lane: from a delivery to its settlement, one step for each message to a server and each answer from one.

What was sent on a session is executed when the answer is read, or, on a session that was lost, at any time or never.
Merged into one step: a verdict that starts nothing and the end of its session; COMMIT's answer and the unlock after it.
Nobody but the lane itself could tell these apart, except by finding the key locked a moment longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from inbox.states import AttemptOutcome
from tests.model.database import Database
from tests.model.world import PARKED, READY, Copy, Process, Session, World, given_back, replaced


class Move(NamedTuple):
    """One step. `calm`: it is no fault and no operator's act, so it may be hoped for."""

    label: str
    world: World
    calm: bool = True


class Lanes(Database):
    """The steps of one process's lane, and of the sessions it has lost."""

    def lane(self, world: World, p: int) -> Iterator[Move]:
        """Every step that the lane of process `p` may take now."""
        process = world.processes[p]
        match process.at:
            case "idle":
                for copy in sorted(set(world.copies)):
                    if copy.place == READY:
                        yield self.delivered(world, p, copy)
            case "got":
                yield from self.claims(world, p)
            case "start sent":
                yield from self.starts(world, p)
            case "hot" | "counted":
                yield from self.runs(world, p)
            case "outcome sent":
                yield from self.answered(world, p)
            case "recording elsewhere":
                yield from self.records_elsewhere(world, p)
            case "park":
                yield Move(f"{p}: park confirmed", self.parked(world, p).at(p, "ack"))
            case "ack":
                copies = tuple(c for c in world.copies if c.place != p)
                yield Move(f"{p}: ack", self.idle(world._replace(copies=copies), p))
            case "requeue":
                yield Move(f"{p}: requeue", self.idle(given_back(world, p), p))

    def delivered(self, world: World, p: int, copy: Copy) -> Move:
        """The broker hands out a copy. A channel that was lost is a new one by then."""
        process = Process("got", copy.redelivered, debts=world.processes[p].debts, beat=world.processes[p].beat)
        copies = replaced(world.copies, copy, copy._replace(place=p))
        flag = ", redelivered" if copy.redelivered else ""
        return Move(f"{p}: delivery{flag}", world._replace(copies=copies).with_process(p, process))

    def idle(self, world: World, p: int) -> World:
        """The delivery is settled, or its channel is gone."""
        process = world.processes[p]
        return world.with_process(p, Process("idle", debts=process.debts, beat=process.beat))

    def parked(self, world: World, p: int) -> World:
        """The broker has confirmed the next copy. It carries the mark that an attempt may have started."""
        process = world.processes[p]
        uncounted = next((c.uncounted for c in world.copies if c.place == p), 0)
        copy = Copy(PARKED, self.mark(process), uncounted)
        return world._replace(copies=tuple(sorted((*world.copies, copy))))

    def mark(self, process: Process) -> bool:
        """The mark of a parked copy."""
        return process.redelivered

    # Claims.

    def claims(self, world: World, p: int) -> Iterator[Move]:
        """Pass the gate of the company, then try the key's lock."""
        process = world.processes[p]
        if not self.may_enter(world, p):
            return
        if world.lock:
            yield Move(f"{p}: contended", world.at(p, self.contended()))
            return
        claim = world.unused_claim()
        if process.counted or self.is_counted(process) or self.is_on_record(world, p):
            session = Session(claim, p, False, True, process.alone, "start")
            process = process._replace(at="start sent", claim=claim, counted=True)
            yield Move(f"{p}: takes the lock, sends the counted start", self.opened(world, p, process, session))
        elif self.sees_receipt(world, p):
            yield Move(f"{p}: duplicate", world.at(p, "ack"))
        else:
            session = Session(claim, p, False, False, False, "")
            copies = tuple(sorted(c._replace(uncounted=c.uncounted + 1) if c.place == p else c for c in world.copies))
            process = process._replace(at="hot", claim=claim)
            yield Move(f"{p}: handler starts, hot", self.opened(world, p, process, session)._replace(copies=copies))

    def opened(self, world: World, p: int, process: Process, session: Session) -> World:
        """A session holds the key's lock."""
        return world.with_process(p, process)._replace(sessions=(*world.sessions, session), lock=session.claim)

    def may_enter(self, world: World, p: int) -> bool:
        """inbox.company: ordinary attempts share a process, a suspect has it for itself."""
        neighbour = world.neighbour
        if neighbour is None or neighbour.place != p:
            return True
        return not (world.processes[p].alone or neighbour.alone)

    def is_counted(self, process: Process) -> bool:
        """An earlier delivery may have started, so this start is committed before the handler runs."""
        return process.redelivered

    def is_on_record(self, world: World, p: int) -> bool:
        """Look for a row after the lock is taken."""
        return world.row is not None

    def sees_receipt(self, world: World, p: int) -> bool:
        """Look for a receipt after the lock is taken."""
        return world.receipt

    def contended(self) -> str:
        """What becomes of a copy whose message is being worked on."""
        return "park"

    def starts(self, world: World, p: int) -> Iterator[Move]:
        """The answer about a counted start."""
        process = world.processes[p]
        session = world.session(process.claim)
        if session is None or session.lost:
            yield self.notices(world, p)
            return
        for verdict, after in self.start(world, session):
            after = after.with_session(session._replace(sent=""))
            if verdict == "run":
                yield Move(f"{p}: start committed, handler starts", after.at(p, "counted"))
                continue
            if verdict == "suspect":
                process = process._replace(at="got", claim=0, alone=True)
            else:
                at = "park" if verdict in ("early", "undecided") else "ack"
                process = process._replace(at=at, claim=0)
            yield Move(f"{p}: {verdict}", after.without_session(session.claim).with_process(p, process))

    # The attempt itself.

    def runs(self, world: World, p: int) -> Iterator[Move]:
        """The handler ends, one way or another, or never."""
        process = world.processes[p]
        session = world.session(process.claim)
        if world.left.stuck:
            left = world.left._replace(stuck=world.left.stuck - 1)
            gone = world if session is None else world.with_session(session._replace(lost=True))
            yield Move(f"{p}: gives its session up", gone._replace(left=left).at(p, "recording elsewhere"), calm=False)
        if session is None or session.lost:
            yield self.notices(world, p)
            return
        for ending in self.setting.endings:
            sent = world.with_session(session._replace(sent=ending)).at(p, "outcome sent")
            yield Move(f"{p}: {ending} sent", sent)

    def answered(self, world: World, p: int) -> Iterator[Move]:
        """The answer to COMMIT, or none."""
        process = world.processes[p]
        session = world.session(process.claim)
        if session is None or session.lost:
            yield self.notices(world, p)
            return
        verdict, after = self.ended(world, session)
        if verdict == "lost":
            yield self.notices(world, p)
            return
        again = "requeue" if session.sent == "abort" else "park"
        at = again if verdict == "waiting" else "ack"
        after = after.without_session(session.claim).with_process(p, process._replace(at=at, claim=0))
        yield Move(f"{p}: {session.sent} committed, {verdict}", after)

    def notices(self, world: World, p: int) -> Move:
        """The session is gone and with it the answer: not acked, not charged; what was counted is owed."""
        process = world.processes[p]
        debts = process.debts
        if process.counted:
            debts = self.owed(debts, process.claim)
        process = process._replace(at=self.after_unknown(), claim=0, debts=debts)
        return Move(f"{p}: notices that its session is lost", world.with_process(p, process))

    def owed(self, debts: tuple[int, ...], claim: int) -> tuple[int, ...]:
        """What a process owes once it has lost the session of a counted attempt."""
        return (*debts, claim)

    def after_unknown(self) -> str:
        """What becomes of a delivery whose outcome nobody has proven."""
        return "requeue"

    def records_elsewhere(self, world: World, p: int) -> Iterator[Move]:
        """The claim's savepoint is out of reach: record by claim on another session, once the key is free."""
        process = world.processes[p]
        yield self.notices(world, p)  # the tries are bounded
        if world.lock or world.receipt:
            return
        session = Session(process.claim, p, False, process.counted, process.alone, "fail")
        if session.counted or world.row is None:
            verdict, after = self.recorded(world, session, AttemptOutcome.FAILED)
            if verdict != "lost":
                process = process._replace(at="park" if verdict == "waiting" else "ack", claim=0)
                yield Move(f"{p}: failure recorded elsewhere, {verdict}", after.with_process(p, process))

    # Sessions that nobody holds any more.

    def orphans(self, world: World) -> Iterator[Move]:
        """A lost session ends, or executes what was sent before the line was cut."""
        for session in world.sessions:
            if not session.lost:
                continue
            yield Move("server ends a lost session", world.without_session(session.claim))
            if session.sent == "start":
                for verdict, after in self.start(world, session):
                    after = after.with_session(session._replace(sent=""))
                    yield Move(f"server executes the start of a lost session: {verdict}", after)
            elif session.sent:
                verdict, after = self.ended(world, session)
                # The hot path's lock ends with its transaction, the counted path's with its session.
                rest = after.with_session(session._replace(sent="")) if session.counted else None
                label = f"server executes the {session.sent} of a lost session: {verdict}"
                yield Move(label, rest or after.without_session(session.claim))
