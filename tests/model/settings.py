"""How much may happen in one exploration: budgets small enough that every interleaving can be looked at.

Faults that nothing bounds would make infinitely many worlds, so each kind has a number. What holds with two of a kind
is not proven for three; the large settings reach further than the small ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.world import Left

NOTHING = Left()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One exploration.

    :param name: what it is about.
    :param copies: how many copies of the message were published.
    :param redelivered: the broker says so of all of them, as it does of whole backlogs after a crash.
    :param left: how many faults and operators' acts may happen.
    :param endings: how a handler may end: commit, fail, reject, abort.
    :param killer: processes die of this message's handler only, which may be at any time that it runs.
    :param neighbour: an innocent message runs beside it, in either process.
    :param sweep: the sweep is on, so a broker may lose copies of what is on record.
    :param republishers: how many tasks serve obligations; two hold the duty for a moment where it changes hands.
    :param deliverers: how many tasks deliver exhaustion records.
    :param max_tries: how often one exhaustion record is delivered.
    """

    name: str
    copies: int = 1
    redelivered: bool = False
    left: Left = NOTHING
    max_attempts: int = 2
    max_aborts: int = 2
    endings: tuple[str, ...] = ("commit", "fail")
    killer: bool = False
    neighbour: bool = False
    sweep: bool = False
    republishers: int = 0
    deliverers: int = 0
    max_tries: int = 2

    @property
    def heartbeats(self) -> bool:
        """Whether heartbeats can come late at all."""
        return bool(self.left.stalls or self.left.outages)


EVERYTHING = ("commit", "fail", "reject", "abort")

SMALL = (
    Setting(name="three copies, a death", copies=3, left=Left(deaths=1)),
    Setting(name="two copies, a lost session", copies=2, endings=EVERYTHING, left=Left(cuts=1)),
    Setting(name="two copies, a lost channel", copies=2, left=Left(channels=1)),
    Setting(name="a death, a lost session", left=Left(deaths=1, cuts=1)),
    Setting(name="two lost sessions", left=Left(cuts=2)),
    Setting(name="three deaths", left=Left(deaths=3)),
    Setting(name="a stop with debts, a death", left=Left(cuts=1, stops=1, deaths=1)),
    Setting(name="a budget of one", copies=2, endings=EVERYTHING, max_attempts=1, max_aborts=1, left=Left(deaths=1)),
    Setting(name="an outage", copies=2, redelivered=True, left=Left(outages=1)),
    Setting(name="heartbeats that stall", left=Left(stalls=1, cuts=1)),
    Setting(name="records on another session", copies=2, left=Left(stuck=1, cuts=1)),
    Setting(name="a sweep, a lost copy", sweep=True, republishers=1, left=Left(deaths=1, losses=1)),
    Setting(name="a replay, a late copy", copies=2, max_attempts=1, republishers=2, left=Left(replays=1, deaths=1)),
    Setting(name="a replay, an old worker", max_attempts=1, republishers=1, left=Left(replays=1, stalls=1, stuck=1)),
    Setting(
        name="a replay of a killer", endings=("commit",), max_attempts=1, republishers=1, left=Left(replays=1, deaths=3)
    ),
    Setting(name="replays and a discard", endings=EVERYTHING, republishers=1, left=Left(replays=2, discards=1)),
    Setting(
        name="exhaustions delivered",
        endings=("fail",),
        max_attempts=1,
        republishers=1,
        deliverers=2,
        left=Left(replays=1),
    ),
    Setting(name="a killer beside a neighbour", killer=True, neighbour=True, endings=("fail",), left=Left(deaths=3)),
)
"""In CI."""

LARGE = (
    Setting(name="three copies, two deaths", copies=3, left=Left(deaths=2)),
    Setting(name="three copies, a death, a lost session", copies=3, left=Left(deaths=1, cuts=1)),
    Setting(name="two copies, two lost sessions", copies=2, left=Left(cuts=2)),
    Setting(
        name="two copies, a death, a lost session, all endings",
        copies=2,
        endings=EVERYTHING,
        left=Left(deaths=1, cuts=1),
    ),
    Setting(name="two copies, a death, a lost channel", copies=2, left=Left(deaths=1, channels=1)),
    Setting(name="two deaths, two lost sessions", left=Left(deaths=2, cuts=2)),
    Setting(name="a budget of three", max_attempts=3, max_aborts=3, copies=2, left=Left(deaths=2)),
    Setting(name="an outage, a death", left=Left(outages=1, deaths=1)),
    Setting(name="two copies, two outages", copies=2, left=Left(outages=2)),
    Setting(name="an outage, a stop, a lost session", left=Left(outages=1, stops=1, cuts=1)),
    Setting(name="two copies, heartbeats that stall", copies=2, left=Left(stalls=1, cuts=1, deaths=1)),
    Setting(name="a sweep, two lost copies", copies=2, sweep=True, republishers=2, left=Left(deaths=1, losses=2)),
    Setting(name="a sweep, heartbeats that stall", sweep=True, republishers=1, left=Left(stalls=1, cuts=1, losses=1)),
    Setting(
        name="a replay, late copies", copies=3, max_attempts=1, republishers=2, left=Left(replays=1, deaths=1, cuts=1)
    ),
    Setting(name="a replay under a sweep", sweep=True, republishers=1, left=Left(replays=1, deaths=1, losses=1)),
    Setting(
        name="a late worker of an old generation", copies=2, republishers=1, left=Left(replays=1, stalls=1, stuck=1)
    ),
    Setting(
        name="exhaustions delivered, a death",
        endings=("fail",),
        max_attempts=1,
        republishers=1,
        deliverers=2,
        left=Left(replays=1, deaths=1),
    ),
    Setting(
        name="three generations delivered",
        endings=("fail",),
        max_attempts=1,
        republishers=1,
        deliverers=2,
        left=Left(replays=2, deaths=1),
    ),
    Setting(
        name="two copies of a killer beside a neighbour", copies=2, killer=True, neighbour=True, left=Left(deaths=3)
    ),
)
"""With --full."""
