"""Settings of every session, and how a session is made like new.

The settings see to it that a session whose client has vanished frees its locks in seconds: each of them covers what the
others do not (a dead client between statements, during one, or with an answer under way).
"""

from __future__ import annotations

from dataclasses import dataclass

SESSION_RESET = "RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;CLOSE ALL;UNLISTEN *;DISCARD TEMP"
"""Undoes what a user left in a session, and keeps its prepared statements. Fit to stand in front of the statements of a
transaction, in one simple-protocol call with them; costs microseconds there and a round trip alone. Session-level
advisory locks stay: `pg_advisory_unlock_all()` is a SELECT, so whoever folds this calls it inside a function."""

_TRANSACTION_TIMEOUT_SINCE = 170000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What the server is told of a session at its start. All in seconds; they survive RESET ALL.

    :param statement_timeout_s: for one statement.
    :param idle_in_transaction_timeout_s: for a transaction whose client does nothing; above the longest handler.
    :param transaction_timeout_s: for a whole transaction, where the server knows that (PostgreSQL 17).
    :param lock_timeout_s: for one lock.
    :param check_interval_s: how often a running statement looks whether its client is still there.
    """

    statement_timeout_s: float
    idle_in_transaction_timeout_s: float
    transaction_timeout_s: float | None = None
    lock_timeout_s: float = 5.0
    check_interval_s: float = 2.0
    keepalive_idle_s: int = 10
    keepalive_interval_s: int = 3
    keepalive_count: int = 3
    unacknowledged_s: float = 15.0

    @classmethod
    def for_handlers(cls, handler_timeout_s: float) -> SessionSettings:
        """Return settings that let a handler have its time, and end a session soon after that."""
        return cls(
            statement_timeout_s=handler_timeout_s + 2,
            idle_in_transaction_timeout_s=handler_timeout_s + 10,
            transaction_timeout_s=handler_timeout_s + 20,
        )

    def server_settings(self, server_version: int) -> dict[str, str]:
        """Return what goes into the start packet.

        :param server_version: `server_version_num`; an unknown setting in the start packet would be refused.
        """
        settings = {
            "statement_timeout": _milliseconds(self.statement_timeout_s),
            "idle_in_transaction_session_timeout": _milliseconds(self.idle_in_transaction_timeout_s),
            "lock_timeout": _milliseconds(self.lock_timeout_s),
            "client_connection_check_interval": _milliseconds(self.check_interval_s),
            "tcp_keepalives_idle": str(self.keepalive_idle_s),
            "tcp_keepalives_interval": str(self.keepalive_interval_s),
            "tcp_keepalives_count": str(self.keepalive_count),
            "tcp_user_timeout": _milliseconds(self.unacknowledged_s),
            "default_transaction_isolation": "read committed",
        }
        if self.transaction_timeout_s is not None and server_version >= _TRANSACTION_TIMEOUT_SINCE:
            settings["transaction_timeout"] = _milliseconds(self.transaction_timeout_s)
        return settings


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
