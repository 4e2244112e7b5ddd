"""An innocent message that runs beside the one that is modelled, in the same processes.

It never fails and never kills. It is always counted, each of its attempts is one step to begin and one to end, and its
own copies, locks and sessions are left out: all that can happen to it is the death of the process that attempts it.
Whether it pays for that is the question.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.database import Database
from tests.model.lanes import Move
from tests.model.world import DEAD, READY, Neighbour, World

PRESENT = ("start sent", "hot", "counted", "outcome sent", "recording elsewhere")


class Neighbours(Database):
    """The steps of the neighbour."""

    def neighbours(self, world: World, neighbour: Neighbour) -> Iterator[Move]:
        """Begin, succeed, or be judged."""
        if neighbour.done:
            return
        if neighbour.place == READY:
            for p in (0, 1):
                alone = neighbour.suspect and self.suspects_run_alone()
                if self.neighbour_may_enter(world, p, alone=alone):
                    begun = neighbour._replace(place=p, alone=alone)
                    yield Move(f"{p}: the neighbour starts", world._replace(neighbour=begun))
        elif neighbour.place == DEAD:
            charged = neighbour.alone or neighbour.free_death_spent
            judged = neighbour._replace(place=READY, suspect=True, alone=False, charged=neighbour.charged + charged)
            judged = judged._replace(free_death_spent=neighbour.free_death_spent or not neighbour.alone)
            yield Move("the neighbour's death is judged", world._replace(neighbour=judged))
        else:
            done = Neighbour(place=READY, charged=neighbour.charged, done=True)
            yield Move("the neighbour succeeds", world._replace(neighbour=done))

    def neighbour_may_enter(self, world: World, p: int, *, alone: bool) -> bool:
        """inbox.company, from the other side."""
        process = world.processes[p]
        return process.at not in PRESENT or not (alone or process.alone)
