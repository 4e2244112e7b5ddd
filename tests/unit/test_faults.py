"""Whose fault an error is: every kind of fault as the driver shows it, from a handler and from the fleet's own SQL."""

from __future__ import annotations

import asyncpg
import pytest

from inbox.faults import AttemptLostError, Fault, in_handler, in_machine


def server_error(sqlstate: str) -> asyncpg.PostgresError:
    """Return an error as the server sends it, of the driver's class for that code."""
    error: asyncpg.PostgresError = asyncpg.PostgresError.new(
        {"C": sqlstate, "M": "as the server says it", "S": "ERROR"}
    )
    assert getattr(error, "sqlstate", None) == sqlstate
    return error


def judged(error: BaseException) -> Fault:
    """Judge an error that passed through the tx and left the handler."""
    return in_handler(error, (error,))


CHARGED = ("23505", "23503", "23502", "23514", "22001", "22021", "22P02", "P0001", "54001", "54000", "42601", "53400")
NAMES_MISSING = ("42P10", "42P01", "42883", "42703", "42501", "3F000")
RERUN = ("40001", "40P01", "55P03")
SERVER = ("25006", "53100", "53200", "53300", "58030", "XX000", "XX001", "57P03", "57P01", "28P01", "28000")


@pytest.mark.parametrize("sqlstate", [*CHARGED, *NAMES_MISSING, "0A000", "25P02", "3B001", "25P01", "2D000"])
def test_what_a_handlers_own_statement_does_wrong_is_charged(sqlstate: str) -> None:
    assert judged(server_error(sqlstate)) is Fault.CHARGE


@pytest.mark.parametrize("sqlstate", RERUN)
def test_contention_runs_again_in_place_whoever_met_it(sqlstate: str) -> None:
    assert judged(server_error(sqlstate)) is Fault.RERUN
    assert in_machine(server_error(sqlstate), closed=False) is Fault.RERUN


@pytest.mark.parametrize("sqlstate", SERVER)
def test_the_state_of_the_server_is_not_charged_and_pauses_where_the_fleet_meets_it_itself(sqlstate: str) -> None:
    assert judged(server_error(sqlstate)) is Fault.ABORT
    assert in_machine(server_error(sqlstate), closed=False) is Fault.PAUSE


@pytest.mark.parametrize("sqlstate", [*NAMES_MISSING, "23514", "3D000"])
def test_what_is_missing_for_the_fleets_own_statements_pauses(sqlstate: str) -> None:
    assert in_machine(server_error(sqlstate), closed=False) is Fault.PAUSE


@pytest.mark.parametrize("error", [server_error("57014"), TimeoutError()])
def test_a_statement_that_was_cancelled_for_its_time_gives_way_and_is_not_charged(error: Exception) -> None:
    assert judged(error) is Fault.ABORT


def test_a_plan_that_a_schema_change_made_invalid_runs_again_but_an_unsupported_feature_is_charged() -> None:
    stale = asyncpg.PostgresError.new({"C": "0A000", "M": "cached plan must not change", "R": "RevalidateCachedQuery"})
    assert type(stale) is asyncpg.InvalidCachedStatementError
    assert judged(stale) is Fault.RERUN
    assert in_machine(stale, closed=False) is Fault.RERUN
    assert judged(asyncpg.OutdatedSchemaCacheError("a type changed")) is Fault.RERUN
    assert judged(server_error("0A000")) is Fault.CHARGE


def test_a_session_that_forgot_its_statements_is_given_up() -> None:
    assert judged(server_error("26000")) is Fault.SESSION_LOST


def test_a_session_of_which_the_driver_has_lost_track_is_given_up() -> None:
    confused = asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress")
    assert judged(confused) is Fault.SESSION_LOST
    assert in_machine(confused, closed=False) is Fault.SESSION_LOST


@pytest.mark.parametrize("sqlstate", ["25P03", "25P04"])
def test_a_session_ended_by_a_timeout_of_its_transaction_is_lost(sqlstate: str) -> None:
    assert judged(server_error(sqlstate)) is Fault.SESSION_LOST


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), Fault.SESSION_LOST),
        (asyncpg.InterfaceError("connection is closed"), Fault.SESSION_LOST),
        (ConnectionResetError("reset"), Fault.SESSION_LOST),
        (TimeoutError(), Fault.SESSION_LOST),
        (server_error("25P03"), Fault.SESSION_LOST),
        (server_error("40001"), Fault.SESSION_LOST),
        (server_error("57P01"), Fault.PAUSE),
        (server_error("57P03"), Fault.PAUSE),
        (server_error("XX000"), Fault.PAUSE),
    ],
)
def test_a_statement_of_the_fleets_own_on_a_lost_session(error: BaseException, fault: Fault) -> None:
    assert in_machine(error, closed=True) is fault


@pytest.mark.parametrize("error", [ConnectionRefusedError(), FileNotFoundError(), TimeoutError()])
def test_a_server_that_cannot_be_reached_pauses(error: OSError) -> None:
    assert in_machine(error, closed=False) is Fault.PAUSE


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), OSError("no route"), server_error("40P01")])
def test_an_error_that_did_not_pass_through_the_tx_is_the_handlers_own(error: BaseException) -> None:
    assert in_handler(error, ()) is Fault.CHARGE
    assert in_handler(error, (server_error("40P01"),)) is Fault.CHARGE


def test_a_protocol_violation_on_an_open_session_is_charged() -> None:
    # NUL in the text of a statement answers with the class of connection errors and leaves the connection open.
    assert judged(server_error("08P01")) is Fault.CHARGE


def test_a_deadlock_is_found_behind_what_the_handler_made_of_it() -> None:
    deadlock = server_error("40P01")
    try:
        try:
            raise deadlock
        except asyncpg.DeadlockDetectedError as error:
            raise RuntimeError("could not place the order") from error
    except RuntimeError as error:
        translated = error
    assert in_handler(translated, (deadlock,)) is Fault.RERUN

    try:
        try:
            raise deadlock
        except asyncpg.DeadlockDetectedError:
            raise RuntimeError("could not place the order")  # noqa: B904  # a handler that does not chain
    except RuntimeError as error:
        unchained = error
    assert in_handler(unchained, (deadlock,)) is Fault.RERUN
    assert in_handler(ExceptionGroup("both", [ValueError(), unchained]), (deadlock,)) is Fault.RERUN


def test_a_deadlock_that_was_suppressed_on_purpose_no_longer_speaks_for_an_error() -> None:
    deadlock = server_error("40P01")
    try:
        try:
            raise deadlock
        except asyncpg.DeadlockDetectedError:
            raise RuntimeError("something else") from None
    except RuntimeError as error:
        unrelated = error
    assert in_handler(unrelated, (deadlock,)) is Fault.CHARGE


def test_what_follows_a_swallowed_deadlock_is_judged_by_the_deadlock() -> None:
    deadlock, refusals = server_error("40P01"), [server_error("25P02") for _ in range(2)]
    assert in_handler(refusals[-1], (deadlock, *refusals)) is Fault.RERUN
    assert in_handler(refusals[0], (server_error("23505"), *refusals)) is Fault.CHARGE
    assert in_handler(refusals[0], (refusals[0],)) is Fault.CHARGE


def test_errors_that_cause_each_other_are_looked_at_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert in_handler(first, (server_error("40P01"),)) is Fault.CHARGE


def test_the_servers_word_for_a_lost_attempt_has_a_class_of_its_own() -> None:
    assert type(server_error("IN001")) is AttemptLostError
