"""What goes wrong, each as often as the setting allows; what operators do; and what time does by itself.

A death takes the lane, the debts and the heartbeat of a process. A cut loses a session that its client still believes
in. An outage loses all sessions and lets all heartbeats expire. Left out: a server that forgets what it has committed,
or what it has confirmed, other than whole copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from inbox.states import Event, State
from tests.model.duties import Duties
from tests.model.lanes import Move
from tests.model.world import (
    DEAD,
    FRESH,
    PARKED,
    READY,
    STALE,
    STALLED,
    STEADY,
    STOPPED,
    Deliverer,
    Process,
    Replay,
    World,
    given_back,
    replaced,
)

RUNNING = ("hot", "counted")


class Faults(Duties):
    """Steps that nobody hopes for, and the clock."""

    def faults(self, world: World, p: int) -> Iterator[Move]:
        """What may happen to process `p`."""
        process, left = world.processes[p], world.left
        if left.deaths and self.may_die(world, p):
            died = self.gone(given_back(world, p), p, DEAD)
            yield Move(f"{p}: dies", died._replace(left=left._replace(deaths=left.deaths - 1)), calm=False)
        if left.stops and process.at == "idle" and process.debts:
            stopped = self.gone(world, p, STOPPED)
            yield Move(f"{p}: stops in order", stopped._replace(left=left._replace(stops=left.stops - 1)), calm=False)
        session = world.session(process.claim) if left.cuts and process.claim else None
        if session is not None and not session.lost:
            cut = world.with_session(session._replace(lost=True))
            label = f"{p}: session lost, unnoticed"
            yield Move(label, cut._replace(left=left._replace(cuts=left.cuts - 1)), calm=False)
        if left.channels and process.channel and process.at != "idle":
            lost = given_back(world, p).with_process(p, process._replace(channel=False))
            label = f"{p}: channel lost"
            yield Move(label, lost._replace(left=left._replace(channels=left.channels - 1)), calm=False)
        if left.stalls and process.beat != STALLED:
            stalled = world.with_process(p, process._replace(beat=STALLED))
            label = f"{p}: heartbeats stall"
            yield Move(label, stalled._replace(left=left._replace(stalls=left.stalls - 1)), calm=False)

    def may_die(self, world: World, p: int) -> bool:
        """A death of a process that has nothing at stake changes nothing."""
        process = world.processes[p]
        return process.at in RUNNING if self.setting.killer else process.at != "idle" or bool(process.debts)

    def gone(self, world: World, p: int, how: int) -> World:
        """A process ends, and a new one takes its place. Its sessions may execute what was sent before."""
        neighbour = world.neighbour
        if neighbour is not None and neighbour.place == p:
            neighbour = neighbour._replace(place=DEAD)
        return world._replace(
            attempts=tuple(a._replace(owner=how) if a.owner == p else a for a in world.attempts),
            sessions=tuple(s._replace(owner=how, lost=True) if s.owner == p else s for s in world.sessions),
            neighbour=neighbour,
        ).with_process(p, Process("idle", beat=FRESH if self.setting.heartbeats else STEADY))

    def fleet_faults(self, world: World) -> Iterator[Move]:
        """What may happen to servers, and to tasks that serve the whole fleet."""
        left = world.left
        if left.outages:
            processes = world.processes
            out = world._replace(
                sessions=tuple(s._replace(lost=True) for s in world.sessions),
                processes=(processes[0]._replace(beat=STALE), processes[1]._replace(beat=STALE)),
                left=left._replace(outages=left.outages - 1),
            )
            yield Move("the database is away for longer than heartbeats live", out, calm=False)
        if left.losses and world.row is not None:
            for copy in sorted(set(world.copies)):
                if copy.place in (READY, PARKED):
                    gone = world._replace(left=left._replace(losses=left.losses - 1))
                    yield Move(
                        "the broker loses a copy", gone._replace(copies=replaced(world.copies, copy)), calm=False
                    )
        if left.deaths:
            fewer = world._replace(left=left._replace(deaths=left.deaths - 1))
            for number, at in enumerate(world.republishers):
                if at != "idle":
                    yield Move("republisher dies", self.republisher(fewer, number, "idle"), calm=False)
            for number, deliverer in enumerate(world.deliverers):
                if deliverer.at != "idle":
                    yield Move("deliverer dies", self.deliverer(fewer, number, Deliverer("idle")), calm=False)

    # Time.

    def time(self, world: World) -> Iterator[Move]:
        """Pauses end, parked copies come back, heartbeats come through."""
        row = world.row
        if row is not None and row.state is State.WAITING and not row.due:
            yield Move("the message is due", world._replace(row=row._replace(due=True)))
        for copy in sorted(set(world.copies)):
            if copy.place == PARKED:
                back = replaced(world.copies, copy, copy._replace(place=READY))
                yield Move("a parked copy comes back", world._replace(copies=back))
        for p, process in enumerate(world.processes):
            if process.beat in (STALE, STALLED):
                yield Move(f"{p}: heartbeat", world.with_process(p, process._replace(beat=FRESH)))
            elif process.beat == FRESH and all(other.beat != STALE for other in world.processes):
                # Steady takes as long as a heartbeat lives: whoever could send one has sent it by then.
                yield Move(f"{p}: is steady", world.with_process(p, process._replace(beat=STEADY)))

    # Operators.

    def operators(self, world: World) -> Iterator[Move]:
        """Replay as a job whose set is frozen first; discard."""
        row, left = world.row, world.left
        if world.replay is not None:
            yield from self.replays(world, world.replay)
        elif left.replays and row is not None and row.state in (State.EXHAUSTED, State.REJECTED):
            frozen = world._replace(replay=Replay(row.generation, 0), left=left._replace(replays=left.replays - 1))
            yield Move("operator: freezes a replay", frozen, calm=False)
        if left.discards and row is not None and not world.lock and (row.state, Event.DISCARD) in self.discardable():
            state = self.next(row.state, Event.DISCARD)
            discarded = self.changed(world, row._replace(state=state, due=False))
            after = discarded._replace(left=left._replace(discards=left.discards - 1))
            yield Move("operator: discards", after, calm=False)

    def discardable(self) -> set[tuple[State, Event]]:
        """What an operator may discard."""
        return {(state, Event.DISCARD) for state in (State.WAITING, State.EXHAUSTED, State.REJECTED)}

    def replays(self, world: World, job: Replay) -> Iterator[Move]:
        """One item, one transaction, under the key's lock. Its answer may be lost; the job may be run by two."""
        row, left = world.row, world.left
        if row is None or not self.is_as_frozen(world, job):
            yield Move("replay: skipped", world._replace(replay=None))
        elif not world.lock:
            # Suspicion stays: what killed its process before runs alone. The free death is a new one.
            state = self.next(row.state, Event.REPLAY)
            again = row._replace(state=state, generation=row.generation + 1, due=True, free_death_spent=False)
            replayed = self.changed(world, again._replace(copy_needed=True))._replace(attempts=())
            job = job._replace(applied=job.applied + 1)
            yield Move("replay: applied", replayed._replace(replay=job if job.applied > 1 else None))
            if left.cuts:
                unknown = replayed._replace(replay=job, left=left._replace(cuts=left.cuts - 1))
                yield Move("replay: applied, answer lost", unknown, calm=False)

    def is_as_frozen(self, world: World, job: Replay) -> bool:
        """The row ended, and is the generation that the operator saw."""
        row = world.row
        return row is not None and row.state in (State.EXHAUSTED, State.REJECTED) and row.generation == job.generation
