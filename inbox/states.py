"""The state machine of a message and of its attempts, as tables.

Everything that decides which state follows which stands here; the migrations repeat it as CHECK constraints, and the
statements that write a state match key, claim and from-state. A pair that is missing from `TRANSITIONS` is
`InvalidTransition`, never a silent zero.

`PROCESSED` is not stored as a row: a processed message is a receipt, and its row, if it had one, is deleted in the
same transaction.

`docs/lifecycle.md` shows the table; `scripts/state_picture.py` draws its picture there.
"""

from __future__ import annotations

from enum import Enum

from inbox.errors import InvalidTransition


class State(str, Enum):
    """Where a message stands. `NEW` and `PROCESSED` have no row in `inbox.message`."""

    NEW = "new"
    ATTEMPTING = "attempting"
    WAITING = "waiting"
    PROCESSED = "processed"
    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    DISCARDED = "discarded"

    @property
    def is_terminal(self) -> bool:
        """True once nothing but an operator moves the message."""
        return self in TERMINAL


TERMINAL = frozenset({State.EXHAUSTED, State.REJECTED, State.DISCARDED})


class Event(str, Enum):
    """What can happen to a message."""

    START = "start"
    COMMIT = "commit"
    FAIL = "fail"
    LAST_FAIL = "last_fail"
    REJECT = "reject"
    CRASH = "crash"
    ABORT = "abort"
    LAST_ABORT = "last_abort"
    NO_BUDGET = "no_budget"
    REPLAY = "replay"
    DISCARD = "discard"


TRANSITIONS: dict[tuple[State, Event], State] = {
    # The hot path: nothing is on record, so nothing is written before the outcome is known.
    (State.NEW, Event.COMMIT): State.PROCESSED,
    (State.NEW, Event.FAIL): State.WAITING,
    (State.NEW, Event.LAST_FAIL): State.EXHAUSTED,
    (State.NEW, Event.REJECT): State.REJECTED,
    (State.NEW, Event.ABORT): State.WAITING,
    (State.NEW, Event.LAST_ABORT): State.EXHAUSTED,
    # The counted path: the start is durable before the handler runs.
    (State.NEW, Event.START): State.ATTEMPTING,
    (State.WAITING, Event.START): State.ATTEMPTING,
    (State.WAITING, Event.NO_BUDGET): State.EXHAUSTED,
    # A predecessor that died leaves `attempting`; a newcomer decides it, under the key's lock.
    (State.ATTEMPTING, Event.CRASH): State.WAITING,
    (State.ATTEMPTING, Event.COMMIT): State.PROCESSED,
    (State.ATTEMPTING, Event.FAIL): State.WAITING,
    (State.ATTEMPTING, Event.LAST_FAIL): State.EXHAUSTED,
    (State.ATTEMPTING, Event.REJECT): State.REJECTED,
    (State.ATTEMPTING, Event.ABORT): State.WAITING,
    (State.ATTEMPTING, Event.LAST_ABORT): State.EXHAUSTED,
    # Operators.
    (State.EXHAUSTED, Event.REPLAY): State.WAITING,
    (State.REJECTED, Event.REPLAY): State.WAITING,
    (State.WAITING, Event.DISCARD): State.DISCARDED,
    (State.EXHAUSTED, Event.DISCARD): State.DISCARDED,
    (State.REJECTED, Event.DISCARD): State.DISCARDED,
}


def next_state(state: State, event: Event) -> State:
    """Return the state that follows, or raise `InvalidTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvalidTransition(state=state.value, event=event.value) from None


class AttemptOutcome(str, Enum):
    """How one attempt ended. `STARTED` is undecided: its process still owes the outcome."""

    STARTED = "started"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    ABORTED = "aborted"
    REJECTED = "rejected"


EVENTS: dict[AttemptOutcome, tuple[Event, ...]] = {
    AttemptOutcome.FAILED: (Event.FAIL, Event.LAST_FAIL),
    AttemptOutcome.TIMED_OUT: (Event.FAIL, Event.LAST_FAIL),
    AttemptOutcome.CRASHED: (Event.CRASH,),
    AttemptOutcome.ABORTED: (Event.ABORT, Event.LAST_ABORT),
    AttemptOutcome.REJECTED: (Event.REJECT,),
}
"""What each outcome of an attempt can mean for its message; which of two, the budget decides."""
