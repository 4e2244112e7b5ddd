"""What is broken, and when: a list that follows from the seed alone.

The deck of all kinds is dealt again and again, so that a run of a few minutes has had each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random


class Breakage(str, Enum):
    """One way to break something."""

    KILL = "SIGKILL to a process"
    STOP = "SIGTERM to a process, and a new start"
    FREEZE = "SIGSTOP to a process for a while"
    CUT_DATABASE = "reset of a process's lines to the database"
    CUT_BROKER = "reset of a process's lines to the broker"
    STALL_DATABASE = "silence on a process's lines to the database"
    STALL_BROKER = "silence on a process's lines to the broker"
    TERMINATE = "end of all sessions by the database"
    CLOSE = "end of all connections by the broker"
    RESTART_DATABASE = "restart of the database"
    CRASH_DATABASE = "SIGKILL to the database, and a new start"
    RESTART_BROKER = "restart of the broker"
    CRASH_BROKER = "SIGKILL to the broker, and a new start"


_DECK = {
    Breakage.KILL: 4,
    Breakage.STOP: 3,
    Breakage.FREEZE: 1,
    Breakage.CUT_DATABASE: 2,
    Breakage.CUT_BROKER: 2,
    Breakage.STALL_DATABASE: 1,
    Breakage.STALL_BROKER: 1,
    Breakage.TERMINATE: 1,
    Breakage.CLOSE: 1,
    Breakage.RESTART_DATABASE: 1,
    Breakage.CRASH_DATABASE: 1,
    Breakage.RESTART_BROKER: 1,
    Breakage.CRASH_BROKER: 1,
}
_FIRST_S = 4.0
_GAP_S = (1.0, 6.5)
_LASTS_S = (0.5, 6.0)
_SERVER_DOWN_S = (0.0, 3.0)

_OF_SERVERS = frozenset(
    {Breakage.RESTART_DATABASE, Breakage.CRASH_DATABASE, Breakage.RESTART_BROKER, Breakage.CRASH_BROKER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is broken.

    :param at_s: when, in seconds from the beginning.
    :param slot: which process it strikes, if it strikes one.
    :param lasts_s: how long it lasts: a silence, a freeze, a server that is down.
    """

    at_s: float
    breakage: Breakage
    slot: int
    lasts_s: float


def schedule(seed: int, seconds: float, *, slots: int) -> list[Fault]:
    """Return all faults of a run, in order.

    Args:
        seed: The same seed gives the same faults.
        seconds: No fault begins later.
        slots: How many processes there are.
    """
    return list(_faults(Random(seed), seconds, slots))


def _faults(random: Random, seconds: float, slots: int) -> Iterator[Fault]:
    at_s = _FIRST_S
    while True:
        deck = [breakage for breakage, number in _DECK.items() for _ in range(number)]
        random.shuffle(deck)
        for breakage in deck:
            if at_s > seconds:
                return
            lasts_s = random.uniform(*(_SERVER_DOWN_S if breakage in _OF_SERVERS else _LASTS_S))
            yield Fault(at_s=at_s, breakage=breakage, slot=random.randrange(slots), lasts_s=lasts_s)
            at_s += random.uniform(*_GAP_S)
