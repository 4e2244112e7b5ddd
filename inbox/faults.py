"""Whose fault an error is: one table of SQLSTATEs and exception types, and what a consumer judges otherwise.

The table speaks of errors that came out of the fleet's own statements or through a `Tx`; a handler's other errors are
its own, unless their type alone tells. A consumer's overrides come before the table, but only for its handlers, and
never for a session that is of no use any more. Errors are told apart by type and SQLSTATE, never by text.

`docs/faults.md` shows the table; `scripts/fault_table.py` writes it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

import asyncpg

from pools import PoolTimeout

_ABORTED = "25P02"  # in_failed_sql_transaction


class Fault(Enum):
    """What an error means for the attempt."""

    CHARGE = "charge"  # the handler's own failure
    RERUN = "rerun"  # not charged: run again at once, claim kept; aborted when that did not help
    ABORT = "abort"  # not charged: the message waits by its pacing
    PAUSE = "pause"  # not charged, and the consumer pauses: nobody can be served
    SESSION_LOST = "new session"  # not charged: come again at once on a new session


ACTIONS: Mapping[str, Fault] = MappingProxyType(
    {fault.value: fault for fault in (Fault.CHARGE, Fault.RERUN, Fault.ABORT, Fault.PAUSE)}
)
"""What a consumer may choose, by its word in the configuration."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    :param met: a SQLSTATE, the first two characters of a class of them, or an exception type, subclasses included.
    :param handler: what it means if a handler's statement met it.
    :param fleet: what it means if a statement of the fleet's own did.
    :param anywhere: its type alone tells, so it need not have come through the tx.
    """

    met: str | type[BaseException]
    name: str
    handler: Fault
    fleet: Fault
    why: str
    anywhere: bool = False

    @property
    def key(self) -> str:
        """What stands for it in a configuration."""
        if isinstance(self.met, str):
            return self.met
        module = self.met.__module__
        return self.met.__qualname__ if module == "builtins" else f"{module.partition('.')[0]}.{self.met.__qualname__}"


_CHARGE, _RERUN, _ABORT, _PAUSE, _LOST = Fault.CHARGE, Fault.RERUN, Fault.ABORT, Fault.PAUSE, Fault.SESSION_LOST

TABLE: tuple[Row, ...] = (
    Row(
        "40001", "serialization_failure", _RERUN, _RERUN, "somebody else's transaction was first; the next try sees it"
    ),
    Row("40P01", "deadlock_detected", _RERUN, _RERUN, "one of two had to give way; the other one is done soon"),
    Row("55P03", "lock_not_available", _RERUN, _RERUN, "somebody else holds the lock, by `lock_timeout` or NOWAIT"),
    Row(
        "57014", "query_canceled", _ABORT, _ABORT, "`statement_timeout`, or an operator's cancel: it gives way for now"
    ),
    Row("25P03", "idle_in_transaction_session_timeout", _LOST, _LOST, "the server has ended the session"),
    Row("25P04", "transaction_timeout", _LOST, _LOST, "the server has ended the session"),
    Row("26000", "invalid_sql_statement_name", _LOST, _LOST, "the session forgot its prepared statements"),
    Row("25006", "read_only_sql_transaction", _ABORT, _PAUSE, "a server that was demoted"),
    Row("53400", "configuration_limit_exceeded", _CHARGE, _PAUSE, "this statement's own temporary files"),
    Row("22", "data exception", _CHARGE, _PAUSE, "what the handler made of this message"),
    Row(
        "23", "integrity constraint violation", _CHARGE, _PAUSE, "the handler's data; ours: no partition for a receipt"
    ),
    Row("28", "invalid authorization", _ABORT, _PAUSE, "a role or password that changed"),
    Row("3D", "invalid catalog name", _CHARGE, _PAUSE, "ours: the database is gone"),
    Row("3F", "invalid schema name", _CHARGE, _PAUSE, "ours: a migration is missing"),
    Row("42", "syntax error or access rule violation", _CHARGE, _PAUSE, "ours: a migration or a privilege is missing"),
    Row("53", "insufficient resources", _ABORT, _PAUSE, "disk, memory or connections of the server"),
    Row("57", "operator intervention", _ABORT, _PAUSE, "the server starts or stops"),
    Row("58", "system error", _ABORT, _PAUSE, "the server's files or its operating system"),
    Row("P0", "PL/pgSQL error", _CHARGE, _PAUSE, "what the service's own functions raise"),
    Row("XX", "internal error", _ABORT, _PAUSE, "the server itself, or damaged data"),
    Row(asyncpg.InvalidCachedStatementError, "", _RERUN, _RERUN, "the schema changed under a cached plan"),
    Row(asyncpg.OutdatedSchemaCacheError, "", _RERUN, _RERUN, "the schema changed under a cached type"),
    Row(asyncpg.InternalClientError, "", _LOST, _LOST, "the driver does not know what its session is doing"),
    Row(TimeoutError, "", _ABORT, _PAUSE, "a statement's own `timeout`; ours: the server does not answer"),
    Row(OSError, "", _CHARGE, _PAUSE, "ours: the server cannot be reached"),
    Row(PoolTimeout, "", _ABORT, _PAUSE, "no connection became free in time", anywhere=True),
)
ELSE = Row("", "anything else", Fault.CHARGE, Fault.PAUSE, "a handler fails by itself; ours would fail for everybody")
"""What holds for an error without a row."""

_BY_CODE = {row.met: row for row in TABLE if isinstance(row.met, str)}
_BY_TYPE = {row.met: row for row in TABLE if not isinstance(row.met, str)}


def is_of_lost_session(met: str | type[BaseException]) -> bool:
    """Return whether an error means that its session is of no use any more, so that no override is asked about it.

    :param met: a SQLSTATE, or an exception type.
    """
    if isinstance(met, str):
        return met in _BY_CODE and _BY_CODE[met].handler is _LOST
    return any(kind in _BY_TYPE and _BY_TYPE[kind].handler is _LOST for kind in met.__mro__)


@dataclass(frozen=True, slots=True)
class Overrides:
    """What one consumer's handlers are judged by before the table.

    :param by_sqlstate: by a SQLSTATE or by its class, for what met a statement of the tx.
    :param by_type: for whatever a handler raised, subclasses included; the nearest base wins.
    """

    by_sqlstate: Mapping[str, Fault] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    by_type: Mapping[type[BaseException], Fault] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def of(self, error: BaseException, *, through_tx: bool) -> Fault | None:
        """Return what was chosen for an error: a SQLSTATE before its class, both before a type; or None."""
        sqlstate = _sqlstate(error)
        if through_tx and sqlstate:
            chosen = self.by_sqlstate.get(sqlstate) or self.by_sqlstate.get(sqlstate[:2])
            if chosen is not None:
                return chosen
        return next((self.by_type[kind] for kind in type(error).__mro__ if kind in self.by_type), None)


NO_OVERRIDES = Overrides()


class AttemptLostError(asyncpg.PostgresError):
    """The server's word for `AttemptLost`: a guarded write in the schema's functions matched no row."""

    sqlstate = "IN001"


def in_handler(error: BaseException, faults: tuple[BaseException, ...], overrides: Overrides = NO_OVERRIDES) -> Fault:
    """Judge an error that a handler raised, by the first one that says anything: itself, what it holds, its causes.

    :param faults: the driver errors that passed through its tx.
    :param overrides: of the consumer.
    """
    for cause in _chain(error):
        through_tx = any(cause is fault for fault in faults)
        met = what_aborted(cause, faults) if through_tx else cause
        row = _row_of(met)
        known = through_tx or row.anywhere
        if known and row.handler is Fault.SESSION_LOST:
            return row.handler
        chosen = overrides.of(met, through_tx=through_tx)
        if chosen is not None:
            return chosen
        if known:
            return row.handler
    return ELSE.handler


def what_aborted(error: BaseException, faults: tuple[BaseException, ...]) -> BaseException:
    """Return the error behind a refusal of an aborted transaction to work on, or the error itself.

    A handler that swallows a deadlock and goes on gets that refusal at each further statement; the deadlock is what
    happened to it.
    """
    if _sqlstate(error) != _ABORTED:
        return error
    return next((fault for fault in reversed(faults) if _sqlstate(fault) != _ABORTED), error)


def in_machine(error: BaseException, *, closed: bool) -> Fault:
    """Judge an error of the fleet's own statement, or of getting a connection for it.

    :param closed: whether its session is gone. That says nothing about the server, unless the server did.
    """
    row = _row_of(error)
    if not closed:
        return row.fleet
    told = row is not ELSE and isinstance(row.met, str) and row.fleet is Fault.PAUSE
    return Fault.PAUSE if told else Fault.SESSION_LOST


def _row_of(error: BaseException) -> Row:
    for kind in type(error).__mro__:
        if kind in _BY_TYPE:
            return _BY_TYPE[kind]
    sqlstate = _sqlstate(error)
    return _BY_CODE.get(sqlstate) or _BY_CODE.get(sqlstate[:2], ELSE)


def _sqlstate(error: BaseException) -> str:
    sqlstate = getattr(error, "sqlstate", None)
    return sqlstate if isinstance(sqlstate, str) else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the members of a group in their order, and what each was raised from."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if current.__cause__ is not None:
            pending.append(current.__cause__)
        elif current.__context__ is not None and not current.__suppress_context__:
            pending.append(current.__context__)
        if isinstance(current, BaseExceptionGroup):
            pending.extend(reversed(current.exceptions))
