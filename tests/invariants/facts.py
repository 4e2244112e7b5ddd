"""What must hold after each step, whatever the steps were, and once nothing is left to be done.

Judged are committed changes, which triggers wrote down one by one, and the rows as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from uuid import UUID

from inbox.claiming import EARLY_TOLERANCE_S
from inbox.states import TERMINAL, TRANSITIONS, State
from tests.invariants.broker import Copy
from tests.invariants.script import CHARGED, Verdict
from tests.invariants.terms import MAX_ABORTS, MAX_ATTEMPTS, key_of
from tests.invariants.witness import Change, Judgement, Standing, Witness

_LEGAL = {(before.value, after.value) for (before, _), after in TRANSITIONS.items()}
_TERMINAL = {state.value for state in TERMINAL}


@dataclass(slots=True)
class Facts:
    """The judge of one example.

    :param witness: the database.
    :param sent: all messages, and how many copies of each were published.
    """

    witness: Witness
    sent: Counter[str]
    verdicts: dict[UUID, Verdict] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    died_in_company: set[UUID] = field(default_factory=set)
    free_deaths: defaultdict[UUID, set[UUID]] = field(default_factory=lambda: defaultdict(set))
    taken_back: Counter[UUID] = field(default_factory=Counter)
    may_be_dead: set[UUID] = field(default_factory=set)
    stopped: set[UUID] = field(default_factory=set)
    violation: AssertionError | None = None

    async def check(self) -> None:
        """Assert everything that must hold now."""
        if self.violation is not None:
            raise self.violation
        for change in await self.witness.changes():
            _check_change(change)
        for judgement in await self.witness.judgements():
            self._check_judgement(judgement)
        for standing in await self.witness.standings({key_of(message_id): message_id for message_id in self.sent}):
            self._check_standing(standing)

    async def check_ends(self) -> None:
        """Assert that every message has ended."""
        for standing in await self.witness.standings({key_of(message_id): message_id for message_id in self.sent}):
            assert standing.receipts == 1 or standing.state in _TERMINAL, f"lost: {standing}"

    async def started(self, key: UUID, claim_id: UUID, copy: Copy, *, lives: bool) -> None:
        """Judge the start of a handler. A violation is remembered: what a handler raises would only be charged.

        :param copy: that was delivered for it.
        :param lives: whether its session does. With a lost one it cannot know what others have done meanwhile, and
            nothing of it will be committed.
        """
        try:
            counted = await self.witness.handler_starts(key, claim_id, lives=lives)
            assert counted or copy.spent_by in (None, claim_id), f"it was tried before and is not counted: {copy}"
        except AssertionError as violation:
            self.violation = violation
        else:
            copy.spent_by = copy.spent_by if counted else claim_id

    def answered(self, claim_id: UUID, verdict: Verdict) -> None:
        """Note what a handler is told to do."""
        self.verdicts[claim_id] = verdict

    def _check_judgement(self, judgement: Judgement) -> None:
        told = self.verdicts.get(judgement.claim_id)
        at_fault = None if told is None else CHARGED.get(told)
        match judgement.after:
            case "started":
                assert judgement.before is None, judgement
            case "failed" | "timed_out":
                assert at_fault is not None, f"charged although its handler was told to {told}: {judgement}"
                assert judgement.after == at_fault.value, (judgement, told)
                assert judgement.charged, judgement
            case "rejected":
                assert told is Verdict.REJECT, (judgement, told)
                assert not judgement.charged, judgement
            case "crashed":
                assert judgement.member_id in self.may_be_dead, f"its process lives: {judgement}"
                assert judgement.member_id not in self.stopped, f"its process stopped in order: {judgement}"
                assert judgement.charged or not judgement.alone, f"a death that happened alone is free: {judgement}"
                if judgement.charged and judgement.member_id in self.died_in_company:
                    assert self.free_deaths[judgement.key], f"charged for what others may have done: {judgement}"
                if not judgement.charged:
                    self.free_deaths[judgement.key].add(judgement.claim_id)
            case "aborted":
                assert not judgement.charged, judgement
                if judgement.before == "crashed":
                    self.taken_back[judgement.key] += 1
                    self.free_deaths[judgement.key].discard(judgement.claim_id)
        assert judgement.before in (None, "started") or (judgement.before, judgement.after) == ("crashed", "aborted")

    def _check_standing(self, standing: Standing) -> None:
        key = key_of(standing.message_id)
        if standing.receipts or standing.state in _TERMINAL:
            self.ended.add(standing.message_id)
        else:
            assert standing.message_id not in self.ended, f"it had ended before: {standing}"
        assert len(standing.writers) <= 1, f"two effects: {standing}"
        assert len(standing.writers) == standing.receipts, f"effect and receipt did not commit together: {standing}"
        assert not (standing.receipts and standing.state), f"receipt and row: {standing}"
        assert standing.charged <= MAX_ATTEMPTS, f"charged beyond the budget: {standing}"
        assert standing.aborted <= MAX_ABORTS + self.taken_back[key], f"aborted beyond the budget: {standing}"
        assert standing.free_deaths <= 1, f"more than one free death: {standing}"
        assert standing.free_death_spent is None or standing.free_death_spent == bool(standing.free_deaths), standing
        undecided = (standing.claim_id,) if standing.state == State.ATTEMPTING.value else ()
        assert standing.undecided == undecided, f"an attempt is undecided that owns nothing: {standing}"
        if standing.state == State.EXHAUSTED.value:
            spent = standing.charged >= MAX_ATTEMPTS
            assert standing.reason == ("attempts" if spent else "aborts"), f"budget is left: {standing}"
            assert spent or standing.aborted >= MAX_ABORTS, f"budget is left: {standing}"
        elif standing.state == State.WAITING.value:
            assert standing.charged < MAX_ATTEMPTS, f"waits without budget: {standing}"
        for claim_id in standing.writers:
            assert self.verdicts.get(claim_id) is Verdict.SUCCEED, f"an effect of a handler that failed: {standing}"


def _check_change(change: Change) -> None:
    assert (change.before, change.after) in _LEGAL, f"no such transition: {change}"
    if change.after == State.ATTEMPTING.value:
        assert (change.early_s or 0.0) <= EARLY_TOLERANCE_S, f"started before its time: {change}"
