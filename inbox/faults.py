"""Whose fault an error is: one table of SQLSTATEs and exception types.

Asked only about errors that came out of the fleet's own statements or through a `Tx`; a handler's other errors are
always its own. The order of the questions matters: a session that is gone shows as several types, so whether it is
closed is asked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import asyncpg

from inbox.errors import AttemptLost

_ABORTED = "25P02"  # in_failed_sql_transaction


class Fault(Enum):
    """What an error means for the attempt."""

    HANDLER = "handler"  # charged
    TIME_IS_UP = "time_is_up"  # charged, as timed out
    RERUN = "rerun"  # not charged: run again at once, claim kept
    SESSION_LOST = "session_lost"  # not charged: come again on a new session
    PAUSE = "pause"  # not charged: the database cannot serve anybody, so the consumer pauses


_BY_SQLSTATE: dict[str, Fault] = {
    "40001": Fault.RERUN,  # serialization_failure
    "40P01": Fault.RERUN,  # deadlock_detected
    "55P03": Fault.RERUN,  # lock_not_available
    "26000": Fault.SESSION_LOST,  # the session forgot its prepared statements: only a new one helps
    "57014": Fault.TIME_IS_UP,  # query_canceled: our statement_timeout
    "53400": Fault.HANDLER,  # configuration_limit_exceeded: this statement's own temporary files
    "25006": Fault.PAUSE,  # read_only_sql_transaction: a demoted server
    "25P03": Fault.SESSION_LOST,  # idle_in_transaction_session_timeout
    "25P04": Fault.SESSION_LOST,  # transaction_timeout
    "XX000": Fault.PAUSE,
    "XX001": Fault.PAUSE,
    "XX002": Fault.PAUSE,
}
_BY_CLASS: dict[str, Fault] = {
    "53": Fault.PAUSE,  # insufficient resources: disk, memory, connections
    "57": Fault.PAUSE,  # operator intervention: starting, stopping
    "58": Fault.PAUSE,  # system error
    "28": Fault.PAUSE,  # invalid authorization
}
# In the fleet's own statements these mean that a migration, a privilege or a partition is missing: nobody's message
# can be served.
_OURS: dict[str, Fault] = {
    "23514": Fault.PAUSE,  # no partition for the receipt
    "3D000": Fault.PAUSE,
    "3F000": Fault.PAUSE,
    "42501": Fault.PAUSE,
    "42703": Fault.PAUSE,
    "42883": Fault.PAUSE,
    "42P01": Fault.PAUSE,
    "42P10": Fault.PAUSE,
}


class AttemptLostError(asyncpg.PostgresError):
    """The server's word for `AttemptLost`: a guarded write in the schema's functions matched no row."""

    sqlstate = "IN001"


def in_handler(error: BaseException, faults: tuple[BaseException, ...], *, closed: bool) -> Fault:
    """Judge an error that a handler raised.

    :param faults: the driver errors that passed through its tx.
    :param closed: whether the session is gone.
    """
    if closed:
        return Fault.SESSION_LOST
    for cause in _chain(error):
        if any(cause is fault for fault in faults):
            return _by_code(what_aborted(cause, faults), Fault.HANDLER)
    return Fault.HANDLER


def what_aborted(error: BaseException, faults: tuple[BaseException, ...]) -> BaseException:
    """Return the error behind a refusal of an aborted transaction to work on, or the error itself.

    A handler that swallows a deadlock and goes on gets that refusal at each further statement; the deadlock is what
    happened to it.
    """
    if getattr(error, "sqlstate", None) != _ABORTED:
        return error
    return next((fault for fault in reversed(faults) if getattr(fault, "sqlstate", None) != _ABORTED), error)


def in_machine(error: BaseException, *, closed: bool) -> Fault:
    """Judge an error of the fleet's own statement, or of getting a connection for it."""
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str) and sqlstate in _OURS:
        return _OURS[sqlstate]
    if not closed:
        return _by_code(error, Fault.PAUSE)
    # A closed session says nothing about the server, unless the server did.
    return Fault.PAUSE if _by_code(error, Fault.SESSION_LOST) is Fault.PAUSE else Fault.SESSION_LOST


def _by_code(error: BaseException, otherwise: Fault) -> Fault:
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(error, (asyncpg.OutdatedSchemaCacheError, asyncpg.InvalidCachedStatementError)):
        return Fault.RERUN  # the schema changed under a cached statement; the next try plans anew
    if isinstance(error, asyncpg.InternalClientError):
        return Fault.SESSION_LOST  # the driver does not know any more what its session is doing
    if not isinstance(sqlstate, str) or sqlstate.startswith("08"):
        return otherwise
    return _BY_SQLSTATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2], otherwise)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the members of a group, and what they were raised from."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        if current.__cause__ is not None:
            pending.append(current.__cause__)
        elif current.__context__ is not None and not current.__suppress_context__:
            pending.append(current.__context__)


__all__ = ["AttemptLost", "AttemptLostError", "Fault", "in_handler", "in_machine"]
