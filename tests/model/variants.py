"""Designs that look as good as the product's, each of which decides one thing otherwise and breaks a rule by that.

A model that finds no fault proves something only if it finds these. Each class says why somebody would build it so.
"""

from __future__ import annotations

from collections.abc import Iterator

from inbox.states import AttemptOutcome, State
from tests.model.duties import locked
from tests.model.lanes import Move
from tests.model.protocol import Protocol
from tests.model.world import STOPPED, Attempt, Deliverer, Process, Replay, Row, Session, World

# Deliveries.


class AcksContendedCopies(Protocol):
    """Somebody else works on the message already, so this copy is not needed."""

    def contended(self) -> str:
        return "ack"


class AcksUnknownOutcomes(Protocol):
    """COMMIT was sent, so it will have been executed."""

    def after_unknown(self) -> str:
        return "ack"


class AcksBeforeTheParkIsConfirmed(Protocol):
    """Publish and ack go out together, and the broker will take both."""

    def lane(self, world: World, p: int) -> Iterator[Move]:
        process = world.processes[p]
        if process.at == "park":
            copies = tuple(c for c in world.copies if c.place != p)
            yield Move(f"{p}: acks what it is about to park", world._replace(copies=copies).at(p, "park acked"))
        elif process.at == "park acked":
            yield Move(f"{p}: park confirmed", self.idle(self.parked(world, p), p))
        else:
            yield from super().lane(world, p)


class ParksWithoutTheMark(Protocol):
    """The broker sets `redelivered`, so a parked copy needs no mark of its own."""

    def mark(self, process: Process) -> bool:
        return False


# Claims and records.


class CountsOnlyFailures(Protocol):
    """An attempt is counted when it has failed; what would one write before?"""

    def is_counted(self, process: Process) -> bool:
        return False


class LooksBeforeTheLock(Protocol):
    """One look on delivery, then the lock: the order of two statements cannot matter."""

    def lane(self, world: World, p: int) -> Iterator[Move]:
        at, nothing = world.processes[p].at, not world.receipt and world.row is None
        if at == "got" and nothing and not world.processes[p].redelivered:
            yield Move(f"{p}: sees nothing on record", world.at(p, "looked"))
        elif at == "looked":
            yield from self.claims(world, p)
        else:
            yield from super().lane(world, p)

    def sees_receipt(self, world: World, p: int) -> bool:
        return world.receipt and world.processes[p].at != "looked"

    def is_counted(self, process: Process) -> bool:
        return process.redelivered and process.at != "looked"

    def is_on_record(self, world: World, p: int) -> bool:
        return world.row is not None and world.processes[p].at != "looked"


class LeavesTheRow(Protocol):
    """The receipt is what counts; the row can be removed later."""

    def stamped(self, world: World, session: Session) -> tuple[str, World]:
        verdict, after = super().stamped(world, session)
        return verdict, after._replace(row=world.row, attempts=world.attempts)


class RecordsAfterTheRollback(Protocol):
    """ROLLBACK first, then the record, in a transaction of its own."""

    def answered(self, world: World, p: int) -> Iterator[Move]:
        process = world.processes[p]
        session = world.session(process.claim)
        if session is not None and not session.lost and not session.counted and session.sent == "fail":
            yield Move(f"{p}: rolled back", world.without_session(session.claim).at(p, "rolled back"))
        else:
            yield from super().answered(world, p)

    def lane(self, world: World, p: int) -> Iterator[Move]:
        process = world.processes[p]
        if process.at != "rolled back":
            yield from super().lane(world, p)
        elif world.row is None:
            verdict, after = self.recorded(world, Session(0, p, False, False, False, "fail"), AttemptOutcome.FAILED)
            after = after.with_process(p, process._replace(at="park" if verdict == "waiting" else "ack", claim=0))
            yield Move(f"{p}: records its failure, {verdict}", after)
        else:
            attempt = Attempt(0, p, False, AttemptOutcome.FAILED, True)
            after = world._replace(attempts=(*world.attempts, attempt)).with_process(
                p, process._replace(at="park", claim=0)
            )
            yield Move(f"{p}: records one more failure", after)


class CountsOnASecondConnection(Protocol):
    """The counted start is committed on another connection than the one that holds the key's lock."""

    def notices(self, world: World, p: int) -> Move:
        move = super().notices(world, p)
        lock_is_ours = world.lock == world.processes[p].claim and world.processes[p].at == "start sent"
        return move._replace(world=move.world._replace(lock=0)) if lock_is_ours else move


class StartsEarlyCopies(Protocol):
    """A copy that came was due, whatever the row says."""

    def is_due(self, row: Row) -> bool:
        return True


class SettlesByKey(Protocol):
    """The message is known by its key, so its attempt is recorded by it."""

    def owns(self, world: World, claim: int) -> bool:
        return world.row is not None and world.row.state is State.ATTEMPTING


# Deaths and debts.


class TakesAFreeLockForADeath(Protocol):
    """Whoever attempts a message holds its lock; it is free, so he is dead."""

    def owner_is(self, world: World, owner: int, judge: int) -> tuple[str, ...]:
        return ("dead",)


class ForgetsItsDebts(Protocol):
    """The session is lost, and the next copy will find out what became of it."""

    def owed(self, debts: tuple[int, ...], claim: int) -> tuple[int, ...]:
        return debts


class JudgesUnsteadily(Protocol):
    """A heartbeat that has expired is a death, whoever looks at it and whenever."""

    def may_judge(self, world: World, judge: int) -> bool:
        return judge >= 0


class TakesAStopForADeath(Protocol):
    """A process that is gone is gone."""

    def owner_is(self, world: World, owner: int, judge: int) -> tuple[str, ...]:
        return ("dead",) if owner < 0 else super().owner_is(world, owner, judge)


class NeverJudges(Protocol):
    """A dead process cannot be told from a slow one."""

    def owner_is(self, world: World, owner: int, judge: int) -> tuple[str, ...]:
        return ("stopped",) if owner == STOPPED else ("alive",)


class TakesChargesBackFromTheEnded(Protocol):
    """A false charge is taken back whenever its owner says so."""

    def may_take_back(self, row: Row) -> bool:
        return True


class KeepsTheFreeDeath(Protocol):
    """The charge is taken back; what else could a false death have changed?"""

    def settled(self, world: World, claim: int) -> World:
        after = super().settled(world, claim)
        if world.row is None or after.row is None:
            return after
        return after._replace(row=after.row._replace(free_death_spent=world.row.free_death_spent))


class LetsSuspectsRunInCompany(Protocol):
    """A message that killed its process is tried again like any other."""

    def suspects_run_alone(self) -> bool:
        return False


# Obligations and operators.


class ClearsBeforeTheConfirm(Protocol):
    """The flag is cleared first, or a copy might be published twice."""

    def publishes(self, world: World, number: int, at: str) -> Iterator[Move]:
        cleared = self.cleared(world) if at == "read" else world
        yield Move("republisher clears", self.republisher(cleared, number, "published"))

    def clears(self, world: World, number: int, at: str) -> Iterator[Move]:
        yield Move("republisher's copy is confirmed", self.republisher(self.published(world), number, "idle"))


class ClearsBlindly(Protocol):
    """The copy is published, so none is needed."""

    def clears(self, world: World, number: int, at: str) -> Iterator[Move]:
        yield Move("republisher clears", self.republisher(self.cleared(world), number, "idle"))


class ReplaysWhateverGeneration(Protocol):
    """It has ended, and an operator wants it replayed."""

    def is_as_frozen(self, world: World, job: Replay) -> bool:
        return world.row is not None and world.row.state in (State.EXHAUSTED, State.REJECTED)


class ReplaysWhateverState(Protocol):
    """It is in the frozen set, so it is replayed."""

    def is_as_frozen(self, world: World, job: Replay) -> bool:
        return world.row is not None


class RecordsExhaustionsLater(Protocol):
    """A task looks for exhausted messages and writes their records."""

    def with_record(self, world: World, row: Row) -> World:
        return world


class AcknowledgesByKey(Protocol):
    """The message's exhaustion has been handled."""

    def acknowledged(self, world: World, deliverer: Deliverer) -> World:
        world = super().acknowledged(world, deliverer)
        return world._replace(exhaustions=tuple(r._replace(acknowledged=True) for r in world.exhaustions))


class IgnoresTheTry(Protocol):
    """The record is locked by its id; the try was counted, so it may run."""

    def still_owns(self, world: World, deliverer: Deliverer) -> bool:
        return not any(r.generation == deliverer.generation and locked(world, r) for r in world.exhaustions)


class RemovesTheEnded(Protocol):
    """A message that has ended needs no row any more: its dead-letter copy has everything."""

    def time(self, world: World) -> Iterator[Move]:
        yield from super().time(world)
        if world.row is not None and world.row.state.is_terminal:
            yield Move("a cleaner removes the row", self.forgotten(world))
