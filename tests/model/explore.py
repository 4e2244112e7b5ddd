"""Breadth first over every world that a setting allows, so that a violation comes with a shortest story.

Worlds are looked at through `canonical`, which lets the two processes change places: a number in a story names a
process for one step only. Steps of faults and operators are bounded by the setting; all others repeat as they like.
Afterwards the graph of the others is walked backwards from the settled worlds: what is not met cannot end.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inbox.errors import InvalidTransition
from inbox.states import Event, State
from tests.model.judge import Rule, broken, settled
from tests.model.protocol import Protocol
from tests.model.world import World, canonical


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, and the steps that led there."""

    rule: Rule
    story: tuple[str, ...]
    world: World

    def __str__(self) -> str:
        return "\n".join(
            (f"{self.rule.name}: {self.rule.value}", *(f"  {step}" for step in self.story), f"  {self.world}")
        )


@dataclass(slots=True)
class Exploration:
    """What was found in one setting."""

    worlds: int = 0
    steps: int = 0
    settled: int = 0
    used: set[tuple[State, Event]] = field(default_factory=set)
    violation: Violation | None = None


class _Graph:
    """The worlds seen so far, by number: how each was reached first, and the calm steps that lead to it."""

    def __init__(self, first: World) -> None:
        self.number = {first: 0}
        self.came_from = [-1]
        self.by = [""]
        self.calm_from: list[list[int]] = [[]]

    def add(self, world: World, came_from: int, by: str) -> tuple[int, bool]:
        known = self.number.get(world)
        if known is not None:
            return known, False
        number = self.number[world] = len(self.came_from)
        self.came_from.append(came_from)
        self.by.append(by)
        self.calm_from.append([])
        return number, True

    def story(self, number: int) -> tuple[str, ...]:
        steps = []
        while number > 0:
            steps.append(self.by[number])
            number = self.came_from[number]
        return tuple(reversed(steps))

    def stuck(self, ends: list[int]) -> int | None:
        """The first world from which no calm steps lead to an end."""
        reaching = bytearray(len(self.came_from))
        waiting = list(ends)
        for number in ends:
            reaching[number] = 1
        while waiting:
            for before in self.calm_from[waiting.pop()]:
                if not reaching[before]:
                    reaching[before] = 1
                    waiting.append(before)
        stuck = reaching.find(0)
        return None if stuck < 0 else stuck


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Worlds have no cycles, and the collector would go through all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_collector_at_rest()
def explore(protocol: Protocol) -> Exploration:
    """Look at every world of a protocol in its setting, up to the first violation."""
    setting, found = protocol.setting, Exploration(used=protocol.used)
    first = canonical(protocol.first())
    graph = _Graph(first)
    todo, ends = deque([(0, first)]), []

    def violated(rule: Rule, at: int, world: World, *steps: str) -> Exploration:
        found.violation = Violation(rule, (*graph.story(at), *steps), world)
        found.worlds = len(graph.came_from)
        return found

    while todo:
        number, world = todo.popleft()
        if settled(world):
            ends.append(number)
        try:
            for label, after, calm in protocol.moves(world):
                found.steps += 1
                rule = broken(setting, world, after)
                if rule is not None:
                    return violated(rule, number, after, label)
                after = canonical(after)
                reached, is_new = graph.add(after, number, label)
                if is_new:
                    todo.append((reached, after))
                if calm:
                    graph.calm_from[reached].append(number)
        except InvalidTransition as error:
            return violated(Rule.TABLE, number, world, str(error))
    found.worlds, found.settled = len(graph.came_from), len(ends)
    stuck = graph.stuck(ends)
    if stuck is not None:
        world = next(world for world, number in graph.number.items() if number == stuck)
        return violated(Rule.STUCK, stuck, world)
    return found
