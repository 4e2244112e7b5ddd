"""One moment of the modelled system, as one immutable value: broker, database, two processes, one message.

What it abstracts: a claim and its session share one number, since a session serves one claim here. Time is one bit,
"the message is due". A heartbeat is one of four words. Attempts are kept for the current generation only, because no
statement reads older ones. Bodies, several queues and the steps of parking are left out: a parked copy comes back
whenever it likes.

`canonical` gives worlds that differ in nothing but names one face: claims are numbered by order of appearance, the two
processes change places, and what no step can read any more is forgotten.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from inbox.states import AttemptOutcome, State

# Where a copy is: waiting in the work queue, parked, or unacked by process 0 or 1.
READY: Final = -2
PARKED: Final = -1

# Who owns an attempt or a session: process 0 or 1 as it lives now, or one that has ended.
DEAD: Final = -1
STOPPED: Final = -2

# What the database knows of a living process. STALE: an outage kept everybody from sending heartbeats. STALLED: this
# process alone did not get through.
STEADY: Final = "steady"
FRESH: Final = "fresh"
STALE: Final = "stale"
STALLED: Final = "stalled"


class Copy(NamedTuple):
    """A copy of the message in the broker."""

    place: int
    redelivered: bool
    uncounted: int  # handler starts that this copy caused and that left no trace; only the judge reads it


class Row(NamedTuple):
    """The row of `inbox.message`."""

    state: State
    generation: int
    claim: int
    due: bool
    suspect: bool
    free_death_spent: bool
    copy_needed: bool


class Attempt(NamedTuple):
    """A row of `inbox.attempt`."""

    claim: int
    owner: int
    alone: bool
    outcome: AttemptOutcome
    charged: bool


class Session(NamedTuple):
    """A session on the server. A lost one has no client any more, and may still execute what was sent on it."""

    claim: int
    owner: int
    lost: bool
    counted: bool
    alone: bool
    sent: str  # nothing, start, or how the attempt ended


class Process(NamedTuple):
    """One process: a lane, its debts, its heartbeat."""

    at: str
    redelivered: bool = False
    claim: int = 0
    counted: bool = False
    alone: bool = False
    channel: bool = True
    debts: tuple[int, ...] = ()
    beat: str = STEADY


class Exhaustion(NamedTuple):
    """A row of `inbox.exhaustion`."""

    generation: int
    tries: int
    acknowledged: bool
    effects: int


class Deliverer(NamedTuple):
    """A task that hands exhaustion records to their handler."""

    at: str
    generation: int = 0
    try_number: int = 0


class Replay(NamedTuple):
    """A replay job of one item: the generation that was frozen, and how often it was applied."""

    generation: int
    applied: int


class Neighbour(NamedTuple):
    """An innocent message on the counted path. `place`: the process that attempts it, READY, or DEAD: undecided."""

    place: int = READY
    alone: bool = False
    suspect: bool = False
    free_death_spent: bool = False
    charged: int = 0
    done: bool = False


class Left(NamedTuple):
    """What may still happen."""

    deaths: int = 0
    cuts: int = 0
    channels: int = 0
    stops: int = 0
    stalls: int = 0
    outages: int = 0
    losses: int = 0
    stuck: int = 0
    replays: int = 0
    discards: int = 0


class World(NamedTuple):
    """Everything."""

    copies: tuple[Copy, ...]
    processes: tuple[Process, Process]
    left: Left
    receipt: bool = False
    row: Row | None = None
    attempts: tuple[Attempt, ...] = ()
    lock: int = 0  # the claim whose session holds the key's lock
    sessions: tuple[Session, ...] = ()
    exhaustions: tuple[Exhaustion, ...] = ()
    deliverers: tuple[Deliverer, ...] = ()
    republishers: tuple[str, ...] = ()
    replay: Replay | None = None
    neighbour: Neighbour | None = None
    effects: int = 0  # committed; only the judge reads it, as the next two
    misjudged: int = 0  # deaths on record of processes that had not died
    usurped: bool = False  # somebody settled an attempt that was not its own

    @property
    def state(self) -> State:
        """The state of the message."""
        if self.row is not None:
            return self.row.state
        return State.PROCESSED if self.receipt else State.NEW

    def with_process(self, number: int, process: Process) -> World:
        """Put one process in the place of another."""
        first, second = self.processes
        return self._replace(processes=(process, second) if number == 0 else (first, process))

    def at(self, number: int, at: str) -> World:
        """Send a lane to another place of its program."""
        return self.with_process(number, self.processes[number]._replace(at=at))

    def without_session(self, claim: int) -> World:
        """End a session: its transaction is rolled back, and its lock is free."""
        sessions = tuple(s for s in self.sessions if s.claim != claim)
        return self._replace(sessions=sessions, lock=0 if self.lock == claim else self.lock)

    def with_session(self, session: Session) -> World:
        """Put a session in the place of the one with its claim."""
        return self._replace(sessions=tuple(session if s.claim == session.claim else s for s in self.sessions))

    def session(self, claim: int) -> Session | None:
        """Find a session by its claim."""
        return next((s for s in self.sessions if s.claim == claim), None)

    def attempt(self, claim: int) -> Attempt | None:
        """Find an attempt by its claim."""
        return next((a for a in self.attempts if a.claim == claim), None)

    def unused_claim(self) -> int:
        """A number that nothing refers to."""
        used = {self.lock, *(s.claim for s in self.sessions), *(a.claim for a in self.attempts)}
        for process in self.processes:
            used.update(process.debts, (process.claim,))
        return next(n for n in range(1, len(used) + 2) if n not in used)


def replaced(copies: tuple[Copy, ...], old: Copy, *new: Copy) -> tuple[Copy, ...]:
    """Put copies in the place of one."""
    rest = list(copies)
    rest.remove(old)
    rest.extend(new)
    return tuple(sorted(rest))


def given_back(world: World, number: int) -> World:
    """The broker has back what a process had not settled, and says so on the next delivery."""
    copies = tuple(sorted(Copy(READY, True, c.uncounted) if c.place == number else c for c in world.copies))
    return world._replace(copies=copies)


def canonical(world: World) -> World:
    """Return the one face of all worlds that differ in names only."""
    if _face(world, 1) < _face(world, 0):
        world = _swapped(world)
    names = {0: 0}
    first, second = world.processes
    for claim in (first.claim, *first.debts, second.claim, *second.debts, world.row.claim if world.row else 0):
        names.setdefault(claim, len(names))
    sessions = world.sessions
    if len(sessions) > 1:
        sessions = tuple(sorted(sessions, key=lambda s: (names.get(s.claim, 99), s[1:])))
    for session in sessions:
        names.setdefault(session.claim, len(names))
    row, on_record = world.row, world.receipt or world.row is not None
    # With a row or a receipt every delivery takes the counted path, whatever the broker says.
    copies = tuple(sorted(Copy(c.place, True, 0) for c in world.copies)) if on_record else world.copies
    deliverers, republishers = world.deliverers, world.republishers
    return world._replace(
        copies=copies,
        processes=(_named(first, names, flagged=on_record), _named(second, names, flagged=on_record)),
        row=row._replace(claim=names[row.claim]) if row is not None and row.claim else row,
        lock=names[world.lock],
        sessions=tuple([Session(names[s.claim], *s[1:]) for s in sessions]),
        attempts=tuple(sorted([_remembered(a, names) for a in world.attempts])),
        deliverers=tuple(sorted(deliverers)) if len(deliverers) > 1 else deliverers,
        republishers=tuple(sorted(republishers)) if len(republishers) > 1 else republishers,
    )


def _remembered(attempt: Attempt, names: dict[int, int]) -> Attempt:
    claim, owner, alone, outcome, charged = attempt
    if outcome is AttemptOutcome.STARTED:
        return Attempt(names.get(claim, 0), owner, alone, outcome, charged)
    return Attempt(names.get(claim, 0), DEAD, False, outcome, charged)


def _named(process: Process, names: dict[int, int], *, flagged: bool) -> Process:
    at, redelivered, claim, counted, alone, channel, debts, beat = process
    owed = tuple([names[d] for d in debts]) if debts else debts
    return Process(at, redelivered or flagged, names[claim], counted, alone, channel, owed, beat)


def _face(world: World, number: int) -> tuple[object, ...]:
    at, redelivered, _, counted, alone, channel, debts, beat = world.processes[number]
    held = [c[1:] for c in world.copies if c.place == number]
    neighbour = world.neighbour is not None and world.neighbour.place == number
    return at, redelivered, counted, alone, channel, beat, len(debts), held, neighbour


def _swapped(world: World) -> World:
    def other(number: int) -> int:
        return 1 - number if number >= 0 else number

    neighbour = world.neighbour
    return world._replace(
        copies=tuple(sorted(c._replace(place=other(c.place)) for c in world.copies)),
        processes=(world.processes[1], world.processes[0]),
        attempts=tuple(a._replace(owner=other(a.owner)) for a in world.attempts),
        sessions=tuple(s._replace(owner=other(s.owner)) for s in world.sessions),
        neighbour=neighbour and neighbour._replace(place=other(neighbour.place)),
    )
