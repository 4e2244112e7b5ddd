"""What the server does, one committed transaction a call: start, record, stamp, settle, sweep, replay, discard.

Each function takes a world and returns the next one; those whose answer depends on a clock return all that are
possible. Every change of the message's state goes through `inbox.states.next_state`, and the pairs that were used are
noted. Small decisions are methods of their own, because the faulty designs of `variants` differ in one of them.

Left out: SQL itself (tests run it on real servers), the crash of a server (an outage loses the sessions, never what was
committed), receipts that have been removed by retention.
"""

from __future__ import annotations

from inbox.states import AttemptOutcome, Event, State, next_state
from tests.model.settings import Setting
from tests.model.world import DEAD, STALE, STALLED, STEADY, STOPPED, Attempt, Exhaustion, Row, Session, World

ENDINGS = {
    "fail": AttemptOutcome.FAILED,
    "abort": AttemptOutcome.ABORTED,
    "reject": AttemptOutcome.REJECTED,
}


class Database:
    """The transactions of the product, as the migrations write them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.used: set[tuple[State, Event]] = set()

    def next(self, state: State, event: Event) -> State:
        """Follow the product's own table; a pair outside of it is an error."""
        after = next_state(state, event)
        self.used.add((state, event))
        return after

    # The counted path.

    def start(self, world: World, session: Session) -> list[tuple[str, World]]:
        """inbox.start_attempt: the verdicts that are possible now, and what each has written."""
        if world.receipt:
            return [("duplicate", self.forgotten(world))]
        row = world.row
        if row is None:
            row = Row(self.next(State.NEW, Event.START), 1, session.claim, False, False, False, False)
            return [("run", self.begun(world, row, session))]
        if row.state.is_terminal:
            return [("terminal", world)]
        if row.state is not State.ATTEMPTING:
            return [self.admitted(world, row, session)]
        answers = []
        for decided in self.decided(world, session.owner):
            assert decided.row is not None
            waits = decided.row.state is not State.ATTEMPTING
            answers.append(self.admitted(decided, decided.row, session) if waits else ("undecided", decided))
        return answers

    def admitted(self, world: World, row: Row, session: Session) -> tuple[str, World]:
        """A message that waits: budget, time, and company decide whether this copy may start it."""
        if self.spent(world):
            return "exhausted", self.exhausted(world, row, Event.NO_BUDGET)
        if not self.is_due(row):
            return "early", world
        if row.suspect and not session.alone and self.suspects_run_alone():
            return "suspect", world
        state = self.next(row.state, Event.START)
        row = row._replace(state=state, claim=session.claim, due=False, copy_needed=False)
        return "run", self.begun(world, row, session)

    def begun(self, world: World, row: Row, session: Session) -> World:
        """The start is on record."""
        attempt = Attempt(session.claim, session.owner, session.alone, AttemptOutcome.STARTED, True)
        return self.changed(world, row)._replace(attempts=(*world.attempts, attempt))

    def decided(self, world: World, judge: int) -> list[World]:
        """inbox.decide_owner: whose attempt is this, and is that process gone? All answers that a clock may give."""
        row = world.row
        assert row is not None
        attempt = world.attempt(row.claim)
        assert attempt is not None
        fates = self.owner_is(world, attempt.owner, judge)
        return [world if fate == "alive" else self.crashed(world, row, attempt, fate) for fate in fates]

    def owner_is(self, world: World, owner: int, judge: int) -> tuple[str, ...]:
        """inbox.owner_is: 'stopped' in order, 'dead', or 'alive' as far as the judge can tell."""
        if owner == STOPPED:
            return ("stopped",)
        if owner == judge or not self.may_judge(world, judge):
            return ("alive",)
        if owner == DEAD:
            return ("alive", "dead")  # its last heartbeat may be fresh still
        return ("dead",) if world.processes[owner].beat in (STALE, STALLED) else ("alive",)

    def may_judge(self, world: World, judge: int) -> bool:
        """Only a steady process may call another one dead."""
        return judge >= 0 and world.processes[judge].beat == STEADY

    def crashed(self, world: World, row: Row, attempt: Attempt, fate: str) -> World:
        """The owner is gone. A death that happened alone is charged; one in company is free, once."""
        if fate == "stopped":
            ended = attempt._replace(outcome=AttemptOutcome.ABORTED, charged=False)
            row = row._replace(state=self.next(row.state, Event.ABORT), claim=0, due=False)
        else:
            charged = attempt.alone or row.free_death_spent
            ended = attempt._replace(outcome=AttemptOutcome.CRASHED, charged=charged)
            state = self.next(row.state, Event.CRASH)
            spent = row.free_death_spent or not attempt.alone
            row = row._replace(state=state, claim=0, due=False, suspect=True, free_death_spent=spent)
            world = world._replace(misjudged=world.misjudged + (attempt.owner != DEAD))
        return self.with_attempt(self.changed(world, row), ended)

    def suspects_run_alone(self) -> bool:
        """Whatever ran in a process that died may have killed it."""
        return True

    def is_due(self, row: Row) -> bool:
        """A copy that comes before the message's time starts nothing."""
        return row.due

    # How attempts end.

    def ended(self, world: World, session: Session) -> tuple[str, World]:
        """The last call of an attempt: stamp or record, and COMMIT. Says what became of the message."""
        if session.sent == "commit":
            return self.stamped(world, session)
        return self.recorded(world, session, ENDINGS[session.sent])

    def stamped(self, world: World, session: Session) -> tuple[str, World]:
        """Effects and receipt; the row goes in the same transaction, and only if this claim owns it."""
        if session.counted and not self.owns(world, session.claim):
            return "lost", world
        self.next(world.state if session.counted else State.NEW, Event.COMMIT)
        world = self.forgotten(world) if session.counted else world
        return "processed", world._replace(receipt=True, effects=world.effects + 1)

    def recorded(self, world: World, session: Session, outcome: AttemptOutcome) -> tuple[str, World]:
        """inbox.record_outcome: the attempt without effects, and what follows for the message."""
        charged = outcome is AttemptOutcome.FAILED
        if not session.counted:
            if world.row is not None:
                return "lost", world
            row = Row(State.NEW, 1, 0, False, False, False, False)
            attempt = Attempt(session.claim, session.owner, False, outcome, charged)
            world = world._replace(attempts=(*world.attempts, attempt))
        elif world.row is not None and self.owns(world, session.claim):
            row = world.row
            theirs = world.attempt(row.claim)
            assert theirs is not None
            world = self.with_attempt(world, theirs._replace(outcome=outcome, charged=charged))
            world = world._replace(usurped=world.usurped or row.claim != session.claim)
        else:
            return "lost", world
        row = row._replace(claim=0, suspect=row.suspect and outcome is AttemptOutcome.ABORTED)
        if outcome is AttemptOutcome.REJECTED:
            row = row._replace(state=self.next(row.state, Event.REJECT), due=False)
            return "terminal", self.changed(world, row)
        last, more = (Event.LAST_FAIL, Event.FAIL) if charged else (Event.LAST_ABORT, Event.ABORT)
        if self.spent(world):
            return "exhausted", self.exhausted(world, row, last)
        # What could be recorded as it ended, in a shutdown or an outage, is tried again at once.
        return "waiting", self.changed(world, row._replace(state=self.next(row.state, more), due=not charged))

    def owns(self, world: World, claim: int) -> bool:
        """A row is matched by key, claim and state."""
        return world.row is not None and world.row.state is State.ATTEMPTING and world.row.claim == claim

    def spent(self, world: World) -> bool:
        """Whether charged or uncharged attempts are used up."""
        charged = sum(a.charged for a in world.attempts)
        aborted = sum(a.outcome is AttemptOutcome.ABORTED for a in world.attempts)
        return charged >= self.setting.max_attempts or aborted >= self.setting.max_aborts

    def exhausted(self, world: World, row: Row, event: Event) -> World:
        """The budget ends, and the record of that is written in the same transaction."""
        row = row._replace(state=self.next(row.state, event), claim=0, due=False)
        return self.with_record(self.changed(world, row), row)

    def with_record(self, world: World, row: Row) -> World:
        """inbox.note_exhaustion."""
        return world._replace(exhaustions=(*world.exhaustions, Exhaustion(row.generation, 0, False, 0)))

    def settled(self, world: World, claim: int) -> World:
        """inbox.settle_debt, under the key's lock: what is undecided was rolled back; a false death is taken back."""
        row = world.row
        if world.receipt:
            return self.forgotten(world)
        attempt = world.attempt(claim)
        if row is None or attempt is None or not self.may_take_back(row):
            return world
        if attempt.outcome not in (AttemptOutcome.STARTED, AttemptOutcome.CRASHED):
            return world
        world = self.with_attempt(world, attempt._replace(outcome=AttemptOutcome.ABORTED, charged=False))
        deaths = [a for a in world.attempts if a.outcome is AttemptOutcome.CRASHED]
        row = row._replace(suspect=row.suspect and bool(deaths), free_death_spent=any(not a.charged for a in deaths))
        if row.claim == claim and row.state is State.ATTEMPTING:
            row = row._replace(state=self.next(row.state, Event.ABORT), claim=0, due=False)
        return self.changed(world, row)

    def may_take_back(self, row: Row) -> bool:
        """What ended a message stays as it was judged."""
        return not row.state.is_terminal

    # Rows.

    def changed(self, world: World, row: Row | None) -> World:
        """Write the row. What a republisher has read of it is out of date then."""
        republishers = tuple(_outdated(r) for r in world.republishers)
        return world._replace(row=row, republishers=republishers)

    def forgotten(self, world: World) -> World:
        """Delete the row, and its attempts with it."""
        return self.changed(world, None)._replace(attempts=())

    def with_attempt(self, world: World, attempt: Attempt) -> World:
        """Put an attempt in the place of the one with its claim."""
        return world._replace(attempts=tuple(attempt if a.claim == attempt.claim else a for a in world.attempts))


def _outdated(at: str) -> str:
    return {"read": "read an old row", "published": "published an old row"}.get(at, at)
