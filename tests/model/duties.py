"""What processes do beside their lanes: settle debts, republish, sweep, deliver exhaustion records.

Of the republisher and of the exhaustion delivery there may be two at a time: a duty changes hands, and the last
holder has not noticed yet.

Left out: dead-letter copies (they are published and cleared by the same steps as `copy_needed`), how due records are
paced, and whether a try's process is dead: here the next try may begin at any time, however late the one before is.
"""

from __future__ import annotations

from collections.abc import Iterator

from inbox.states import State
from tests.model.lanes import Lanes, Move
from tests.model.world import PARKED, READY, Copy, Deliverer, Exhaustion, World


class Duties(Lanes):
    """The background tasks of the fleet."""

    def debts(self, world: World, p: int) -> Iterator[Move]:
        """An owed attempt is settled once the key's lock is free: its session has ended then, and its fate is known."""
        process = world.processes[p]
        if world.lock:
            return
        for claim in process.debts:
            rest = tuple(d for d in process.debts if d != claim)
            settled = self.settled(world, claim).with_process(p, process._replace(debts=rest))
            yield Move(f"{p}: settles a debt", settled)

    # Obligations.

    def republishes(self, world: World) -> Iterator[Move]:
        """Read, publish, clear by compare-and-set: what was not as read is left for the next pass."""
        row = world.row
        for number, at in enumerate(world.republishers):
            if at == "idle":
                if row is not None and row.copy_needed:
                    yield Move("republisher reads", self.republisher(world, number, "read"))
            elif at.startswith("read"):
                yield from self.publishes(world, number, at)
            else:
                yield from self.clears(world, number, at)

    def publishes(self, world: World, number: int, at: str) -> Iterator[Move]:
        """The copy is confirmed; it says that an attempt may have started."""
        published = self.published(world)
        yield Move(
            "republisher's copy is confirmed", self.republisher(published, number, at.replace("read", "published"))
        )

    def clears(self, world: World, number: int, at: str) -> Iterator[Move]:
        """The flag goes, if the row is still the one that was read."""
        cleared = self.cleared(world) if at == "published" else world
        yield Move("republisher clears", self.republisher(cleared, number, "idle"))

    def published(self, world: World) -> World:
        """One more copy waits in the work queue."""
        return world._replace(copies=tuple(sorted((*world.copies, Copy(READY, True, 0)))))

    def cleared(self, world: World) -> World:
        """The row asks for no copy any more."""
        row = world.row
        return world if row is None else self.changed(world, row._replace(copy_needed=False))

    def republisher(self, world: World, number: int, at: str) -> World:
        """Send one republisher to another place."""
        republishers = (*world.republishers[:number], at, *world.republishers[number + 1 :])
        return world._replace(republishers=republishers)

    # The sweep.

    def sweeps(self, world: World) -> Iterator[Move]:
        """Under the key's lock: judge attempts of dead processes, and ask for a copy where the broker has lost it.

        What was judged waits like any other message: a copy is asked for only if none is seen.
        """
        row = world.row
        if row is None or world.lock:
            return
        if row.state is State.ATTEMPTING:
            found = {d for p in (0, 1) for d in self.decided(world, p)} - {world}
            for decided in sorted(found, key=repr):
                yield Move("sweep judges an attempt whose process is gone", decided)
        elif row.state is State.WAITING and row.due and not row.copy_needed and not _is_seen(world):
            yield Move("sweep finds no copy", self.obliged(world))

    def obliged(self, world: World) -> World:
        """A copy is needed."""
        assert world.row is not None
        return self.changed(world, world.row._replace(copy_needed=True))

    # Exhaustion delivery.

    def delivers(self, world: World) -> Iterator[Move]:
        """Count the try; lock the record by its identity and this try, run the handler, acknowledge and commit."""
        for number, deliverer in enumerate(world.deliverers):
            if deliverer.at == "idle":
                for record in world.exhaustions:
                    if not record.acknowledged and record.tries < self.setting.max_tries and not locked(world, record):
                        counted = record._replace(tries=record.tries + 1)
                        begun = Deliverer("counted", record.generation, counted.tries)
                        after = self.deliverer(with_exhaustion(world, counted), number, begun)
                        yield Move(f"a try of exhaustion {record.generation} is counted", after)
            elif deliverer.at == "counted":
                at = "runs" if self.still_owns(world, deliverer) else "idle"
                yield Move(
                    f"a try of exhaustion {deliverer.generation} {at}", self.deliverer(world, number, deliverer, at)
                )
            else:
                yield Move("on_exhausted fails", self.deliverer(world, number, deliverer, "idle"))
                acknowledged = self.acknowledged(world, deliverer)
                yield Move("on_exhausted commits", self.deliverer(acknowledged, number, deliverer, "idle"))

    def still_owns(self, world: World, deliverer: Deliverer) -> bool:
        """The record is locked by id, key, generation and try: a later try has made this one void."""
        for record in world.exhaustions:
            if record.generation == deliverer.generation and not locked(world, record):
                return record.tries == deliverer.try_number and not record.acknowledged
        return False

    def acknowledged(self, world: World, deliverer: Deliverer) -> World:
        """Effects and acknowledgement commit together, by exact identity."""
        record = next(r for r in world.exhaustions if r.generation == deliverer.generation)
        return with_exhaustion(world, record._replace(acknowledged=True, effects=record.effects + 1))

    def deliverer(self, world: World, number: int, deliverer: Deliverer, at: str = "") -> World:
        """Put a deliverer at another place of its program; what it has done with is forgotten."""
        if at:
            deliverer = Deliverer("idle") if at == "idle" else deliverer._replace(at=at)
        deliverers = (*world.deliverers[:number], deliverer, *world.deliverers[number + 1 :])
        return world._replace(deliverers=deliverers)


def _is_seen(world: World) -> bool:
    """Unacked copies cannot be seen. The slack is longer than a handler may take, but not than a kept delivery."""
    return any(copy.place in (READY, PARKED) for copy in world.copies)


def locked(world: World, record: Exhaustion) -> bool:
    """Whether a handler's transaction holds the record's row."""
    return any(d.at == "runs" and d.generation == record.generation for d in world.deliverers)


def with_exhaustion(world: World, record: Exhaustion) -> World:
    """Put a record in the place of the one of its generation."""
    records = tuple(record if r.generation == record.generation else r for r in world.exhaustions)
    return world._replace(exhaustions=records)
