"""All steps together: what may happen next in a world, and the world that everything begins with."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.faults import Faults
from tests.model.lanes import Move
from tests.model.neighbours import Neighbours
from tests.model.world import READY, Copy, Deliverer, Neighbour, Process, World


class Protocol(Neighbours, Faults):
    """The product's protocol. A faulty design is a subclass that decides one thing otherwise."""

    def first(self) -> World:
        """All copies wait in the work queue; nothing is on record."""
        setting = self.setting
        return World(
            copies=(Copy(READY, setting.redelivered, 0),) * setting.copies,
            processes=(Process("idle"), Process("idle")),
            left=setting.left,
            deliverers=(Deliverer("idle"),) * setting.deliverers,
            republishers=("idle",) * setting.republishers,
            neighbour=Neighbour() if setting.neighbour else None,
        )

    def moves(self, world: World) -> Iterator[Move]:
        """Everything that may happen next."""
        yield from self.time(world)
        for p in (0, 1):
            yield from self.lane(world, p)
            yield from self.debts(world, p)
            yield from self.faults(world, p)
        yield from self.orphans(world)
        yield from self.fleet_faults(world)
        yield from self.operators(world)
        if world.republishers:
            yield from self.republishes(world)
        if world.deliverers:
            yield from self.delivers(world)
        if self.setting.sweep:
            yield from self.sweeps(world)
        if world.neighbour is not None:
            yield from self.neighbours(world, world.neighbour)
