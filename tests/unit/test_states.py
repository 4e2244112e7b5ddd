"""The transition table is closed: what an attempt can report leads somewhere, and only operators leave the end."""

from __future__ import annotations

import itertools

import pytest

from inbox.errors import InvalidTransition
from inbox.states import EVENTS, TERMINAL, TRANSITIONS, AttemptOutcome, Event, State, next_state

OPERATORS = {Event.REPLAY, Event.DISCARD}


def test_only_an_operator_moves_a_terminal_message() -> None:
    leaving = {(state, event) for state, event in TRANSITIONS if state in TERMINAL}
    assert {event for _, event in leaving} <= OPERATORS
    assert {state for state, _ in leaving} == {State.EXHAUSTED, State.REJECTED}


def test_a_discarded_or_processed_message_is_never_moved_again() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in (State.DISCARDED, State.PROCESSED)]


def test_operators_do_nothing_to_an_attempt_that_runs() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is State.ATTEMPTING and pair[1] in OPERATORS]


@pytest.mark.parametrize("before", [State.NEW, State.ATTEMPTING])
@pytest.mark.parametrize("outcome", [outcome for outcome in EVENTS if outcome is not AttemptOutcome.CRASHED])
def test_every_outcome_of_an_attempt_leads_somewhere(before: State, outcome: AttemptOutcome) -> None:
    for event in EVENTS[outcome]:
        assert next_state(before, event) in {State.WAITING, State.EXHAUSTED, State.REJECTED}


def test_every_outcome_but_started_is_an_event() -> None:
    assert set(AttemptOutcome) - set(EVENTS) == {AttemptOutcome.STARTED}


def test_a_death_is_found_only_where_an_attempt_was_counted() -> None:
    assert [pair[0] for pair in TRANSITIONS if pair[1] is Event.CRASH] == [State.ATTEMPTING]


def test_what_the_table_does_not_know_is_an_error_that_names_state_and_event() -> None:
    unknown = set(itertools.product(State, Event)) - set(TRANSITIONS)
    for state, event in unknown:
        with pytest.raises(InvalidTransition) as refused:
            next_state(state, event)
        assert (refused.value.state, refused.value.event) == (state.value, event.value)
        assert state.value in str(refused.value)
        assert event.value in str(refused.value)


def test_every_state_is_reached_and_every_open_one_can_end() -> None:
    reached = {State.NEW} | set(TRANSITIONS.values())
    assert reached == set(State)
    for start in (State.NEW, State.WAITING, State.ATTEMPTING):
        found, frontier = {start}, [start]
        while frontier:
            state = frontier.pop()
            for (before, _), after in TRANSITIONS.items():
                if before is state and after not in found:
                    found.add(after)
                    frontier.append(after)
        assert found >= TERMINAL | {State.PROCESSED}


def test_the_terminal_states_say_so() -> None:
    assert {state for state in State if state.is_terminal} == TERMINAL
