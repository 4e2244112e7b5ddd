"""A model that finds nothing proves something only if it finds what is known to be wrong.

Each faulty design breaks one rule in a setting in which the product's design breaks none.
"""

from __future__ import annotations

import inspect
import re
from functools import cache

import pytest

from tests.model import variants
from tests.model.explore import Exploration, explore
from tests.model.judge import Rule
from tests.model.protocol import Protocol
from tests.model.settings import Setting
from tests.model.world import Left

ONE_CUT = Setting(name="one session lost", left=Left(cuts=1))
ONE_DEATH = Setting(name="one death", left=Left(deaths=1))
ONE_OF_EACH = Setting(name="a death and a session lost", left=Left(deaths=1, cuts=1))
TWO_COPIES = Setting(name="two copies", copies=2)
SUCCEEDING = Setting(name="copies of a message that succeeds", copies=2, endings=("commit",))
FAILING = Setting(name="copies of a message that fails", copies=2, endings=("fail",), max_attempts=1)
DYING = Setting(name="deaths, and copies that meet them", copies=2, left=Left(deaths=2))
STOPPING = Setting(name="a stop with a debt", left=Left(cuts=1, stops=1))
OUTAGE = Setting(name="an outage", redelivered=True, endings=("commit",), left=Left(outages=1))
STALLED = Setting(name="a process that is taken for dead", left=Left(stalls=1, cuts=1))
ENDED = Setting(
    name="the end by a false death",
    redelivered=True,
    endings=("commit",),
    max_attempts=1,
    killer=True,
    left=Left(deaths=1, stalls=1, cuts=1),
)
LATE = Setting(
    name="a late worker",
    copies=2,
    redelivered=True,
    endings=("commit",),
    max_attempts=1,
    killer=True,
    left=Left(deaths=1, stalls=1, stuck=1),
)
KILLER = Setting(name="a killer and its neighbour", endings=("fail",), left=Left(deaths=2), killer=True, neighbour=True)
REPUBLISHING = Setting(name="a republisher that dies", max_attempts=1, republishers=1, left=Left(replays=1, deaths=1))
REPUBLISHING_TWICE = Setting(name="two replays", max_attempts=1, republishers=1, left=Left(replays=2))
REPLAYING = Setting(name="a replay without an answer", max_attempts=1, republishers=1, left=Left(replays=1, cuts=1))
DELIVERING = Setting(
    name="exhaustions of two generations",
    endings=("fail",),
    max_attempts=1,
    republishers=1,
    deliverers=2,
    left=Left(replays=1),
)

CATCHES: dict[type[Protocol], tuple[Rule, Setting]] = {
    variants.AcksContendedCopies: (Rule.NOT_LOST, ONE_CUT),
    variants.AcksUnknownOutcomes: (Rule.NOT_LOST, ONE_CUT),
    variants.AcksBeforeTheParkIsConfirmed: (Rule.NOT_LOST, ONE_DEATH),
    variants.ParksWithoutTheMark: (Rule.COUNTED, DYING),
    variants.CountsOnlyFailures: (Rule.COUNTED, ONE_DEATH),
    variants.LooksBeforeTheLock: (Rule.ONE_EFFECT, SUCCEEDING),
    variants.LeavesTheRow: (Rule.ONE_WORD, TWO_COPIES),
    variants.RecordsAfterTheRollback: (Rule.BUDGET, FAILING),
    variants.CountsOnASecondConnection: (Rule.OWNED, ONE_OF_EACH),
    variants.StartsEarlyCopies: (Rule.IN_TIME, TWO_COPIES),
    variants.SettlesByKey: (Rule.OWN_ATTEMPT, LATE),
    variants.TakesAFreeLockForADeath: (Rule.CHARGED_FOR_CAUSE, ONE_CUT),
    variants.ForgetsItsDebts: (Rule.OWNED, ONE_CUT),
    variants.JudgesUnsteadily: (Rule.CHARGED_FOR_CAUSE, OUTAGE),
    variants.TakesAStopForADeath: (Rule.CHARGED_FOR_CAUSE, STOPPING),
    variants.NeverJudges: (Rule.STUCK, ONE_DEATH),
    variants.TakesChargesBackFromTheEnded: (Rule.WHOLE_BUDGET, ENDED),
    variants.KeepsTheFreeDeath: (Rule.FREE_DEATH, STALLED),
    variants.LetsSuspectsRunInCompany: (Rule.INNOCENT, KILLER),
    variants.ClearsBeforeTheConfirm: (Rule.NOT_LOST, REPUBLISHING),
    variants.ClearsBlindly: (Rule.NOT_LOST, REPUBLISHING_TWICE),
    variants.ReplaysWhateverGeneration: (Rule.REPLAYED_ONCE, REPLAYING),
    variants.ReplaysWhateverState: (Rule.TABLE, REPLAYING),
    variants.RecordsExhaustionsLater: (Rule.RECORDED, FAILING),
    variants.AcknowledgesByKey: (Rule.DELIVERED, DELIVERING),
    variants.IgnoresTheTry: (Rule.DELIVERED, DELIVERING),
    variants.RemovesTheEnded: (Rule.TERMINAL, FAILING),
}


def _words(variant: type[Protocol]) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", variant.__name__).lower()


@cache
def _by_the_product(setting: Setting) -> Exploration:
    return explore(Protocol(setting))


@pytest.mark.parametrize("variant", CATCHES, ids=_words)
def test_a_faulty_design_is_caught_by_the_rule_it_breaks(variant: type[Protocol]) -> None:
    rule, setting = CATCHES[variant]
    violation = explore(variant(setting)).violation
    assert violation is not None, "nothing was found"
    assert violation.rule is rule, str(violation)
    assert _by_the_product(setting).violation is None


def test_every_faulty_design_is_tried() -> None:
    written = {c for _, c in inspect.getmembers(variants, inspect.isclass) if issubclass(c, Protocol)} - {Protocol}
    assert written == set(CATCHES)


def test_every_rule_is_broken_by_some_design() -> None:
    assert {rule for rule, _ in CATCHES.values()} == set(Rule)


def test_a_violation_tells_the_shortest_story_that_leads_to_it() -> None:
    violation = explore(variants.AcksContendedCopies(ONE_CUT)).violation
    assert violation is not None
    assert violation.story[0] == "0: delivery"
    assert any("contended" in step for step in violation.story)
    assert str(violation).startswith("NOT_LOST: a message that has not ended has a copy")
