"""The rules: what must hold in every world, across every step, and of the world as a whole.

The rules know nothing of the steps. Most look at one world; those about a step look at the world before and after it.
Progress (`Rule.STUCK`) is judged by `explore`, which knows all worlds.
"""

from __future__ import annotations

from enum import Enum

from inbox.states import AttemptOutcome, State
from tests.model.settings import Setting
from tests.model.world import World


class Rule(Enum):
    """What may never be broken."""

    TABLE = "every change of state is in the product's transition table"
    ONE_EFFECT = "at most one committed effect"
    ONE_WORD = "a message has a receipt or a row, never both"
    NOT_LOST = "a message that has not ended has a copy, or somebody who owes it one"
    TERMINAL = "only a replay or a discard moves a message that has ended"
    BUDGET = "charged attempts never exceed the budget, and uncharged ones theirs"
    WHOLE_BUDGET = "no message is exhausted with budget left"
    FREE_DEATH = "one death in company is free in each generation, and the row knows it"
    COUNTED = "a copy starts at most one handler that leaves no trace"
    CHARGED_FOR_CAUSE = "no attempt is a death whose process did not die: not for an outage, a lost session, a stop"
    OWNED = "an attempt without an outcome has a process that owes it one"
    OWN_ATTEMPT = "nobody settles an attempt that is not its own"
    IN_TIME = "no attempt starts before its message is due"
    RECORDED = "every exhaustion has its record, and no record vanishes"
    DELIVERED = "a record is acknowledged with its own effects, once"
    REPLAYED_ONCE = "one replay gives one new generation"
    INNOCENT = "a neighbour does not pay for a message that kills its process"
    STUCK = "from everywhere the end can be reached without further faults"


def broken(setting: Setting, before: World, after: World) -> Rule | None:
    """Return the first rule that a step has broken, if any."""
    return _broken_by_step(before, after) or _broken_in_world(setting, after) or _broken_by_attempts(setting, after)


def _broken_by_step(before: World, after: World) -> Rule | None:
    was, now = before.row, after.row
    if was is not now and was is not None and was.state.is_terminal:
        if now is None:
            return Rule.TERMINAL
        replayed = now.state is State.WAITING and now.generation == was.generation + 1
        if now.state is not was.state and not replayed and now.state is not State.DISCARDED:
            return Rule.TERMINAL
    if before.receipt and (not after.receipt or after.effects != before.effects):
        return Rule.ONE_EFFECT
    if was is not None and was.state is State.WAITING and not was.due and after.state is State.ATTEMPTING:
        return Rule.IN_TIME
    if after.exhaustions is not before.exhaustions:
        kept = {r.generation for r in after.exhaustions}
        if not kept.issuperset(r.generation for r in before.exhaustions):
            return Rule.RECORDED
    return None


def _broken_by_attempts(setting: Setting, world: World) -> Rule | None:
    charged = aborted = free = 0
    for attempt in world.attempts:
        charged += attempt.charged
        if attempt.outcome is AttemptOutcome.ABORTED:
            aborted += 1
        elif attempt.outcome is AttemptOutcome.CRASHED:
            free += not attempt.charged
        elif attempt.outcome is AttemptOutcome.STARTED and attempt.owner >= 0:
            owner = world.processes[attempt.owner]
            if attempt.claim != owner.claim and attempt.claim not in owner.debts:
                return Rule.OWNED
    if charged > setting.max_attempts or aborted > setting.max_aborts + world.misjudged:
        return Rule.BUDGET
    row = world.row
    if (
        row is not None
        and row.state is State.EXHAUSTED
        and charged < setting.max_attempts
        and aborted < setting.max_aborts
    ):
        return Rule.WHOLE_BUDGET
    if free > 1 or (row is not None and row.free_death_spent != (free == 1)):
        return Rule.FREE_DEATH
    # A process whose own heartbeats do not get through cannot be told from a dead one, as long as that lasts.
    if world.misjudged and world.left.stalls == setting.left.stalls:
        return Rule.CHARGED_FOR_CAUSE
    return Rule.OWN_ATTEMPT if world.usurped else None


def _broken_in_world(setting: Setting, world: World) -> Rule | None:
    row = world.row
    if world.effects > 1:
        return Rule.ONE_EFFECT
    if world.receipt and row is not None:
        return Rule.ONE_WORD
    if not world.copies and not world.receipt and not _is_obliged(setting, world):
        return Rule.NOT_LOST
    if world.state is State.EXHAUSTED and row is not None:
        recorded = {r.generation for r in world.exhaustions}
        if row.generation not in recorded:
            return Rule.RECORDED
    if any(r.effects != r.acknowledged for r in world.exhaustions):
        return Rule.DELIVERED
    if any(c.uncounted > 1 for c in world.copies):
        return Rule.COUNTED
    if world.replay is not None and world.replay.applied > 1:
        return Rule.REPLAYED_ONCE
    if world.neighbour is not None and world.neighbour.charged:
        return Rule.INNOCENT
    return None


def _is_obliged(setting: Setting, world: World) -> bool:
    row = world.row
    if row is None:
        return False
    return row.state.is_terminal or row.copy_needed or setting.sweep


def settled(world: World) -> bool:
    """Whether everything has come to its end: nothing in the broker, nothing owed, nobody at work."""
    row = world.row
    if world.copies or world.sessions or world.replay is not None:
        return False
    if any(p.at != "idle" or p.debts for p in world.processes):
        return False
    if any(r != "idle" for r in world.republishers) or any(d.at != "idle" for d in world.deliverers):
        return False
    return world.receipt if row is None else row.state.is_terminal and not row.copy_needed
