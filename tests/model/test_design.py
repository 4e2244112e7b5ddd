"""No interleaving of any setting breaks a rule, and together they use the whole transition table.

Small settings always, large ones with `--full`. `python -m tests.model` prints how many worlds there are.
"""

from __future__ import annotations

from functools import cache

import pytest

from inbox.states import TRANSITIONS, Event, State
from tests.model.explore import Exploration, explore
from tests.model.protocol import Protocol
from tests.model.settings import EVERYTHING, LARGE, SMALL, Setting
from tests.model.world import Left


@cache
def _explored(setting: Setting) -> Exploration:
    return explore(Protocol(setting))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "setting" in metafunc.fixturenames:
        settings = SMALL + LARGE if metafunc.config.getoption("--full") else SMALL
        metafunc.parametrize("setting", settings, ids=[s.name.replace(" ", "_") for s in settings])


@pytest.mark.timeout(3600)
def test_no_interleaving_breaks_a_rule(setting: Setting) -> None:
    found = _explored(setting)
    assert found.violation is None, str(found.violation)
    assert found.settled, "a setting that ends nowhere proves nothing"


def test_every_transition_is_used_and_none_outside_of_the_table() -> None:
    settings = (
        Setting(name="one attempt", copies=2, endings=EVERYTHING, max_attempts=1, max_aborts=1, left=Left(discards=1)),
        Setting(name="two attempts", endings=EVERYTHING, republishers=1, left=Left(replays=1, discards=1)),
        Setting(name="a death, a debt", redelivered=True, max_aborts=1, left=Left(deaths=1, cuts=1)),
    )
    used = set[tuple[State, Event]]().union(*(_explored(setting).used for setting in settings))
    assert used == set(TRANSITIONS)


def test_an_exploration_is_the_same_each_time() -> None:
    setting = SMALL[2]
    first, second = explore(Protocol(setting)), explore(Protocol(setting))
    assert (first.worlds, first.steps, first.settled) == (second.worlds, second.steps, second.settled)
