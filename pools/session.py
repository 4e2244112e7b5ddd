"""Settings of every session, and how a session is made like new.

The settings see to it that a session whose client has vanished frees its locks in seconds: each of them covers what the
others do not (a dead client between statements, during one, or with an answer under way). They travel in the start
packet, because `RESET ALL` returns to what stood there and forgets everything that was set later.
"""

from __future__ import annotations

from dataclasses import dataclass

# What each undoes: SET SESSION AUTHORIZATION; SET ROLE; SET and set_config; WITH HOLD cursors; LISTEN; temporary
# tables; what currval and lastval remember. None of them touches prepared statements, as DISCARD ALL would.
_UNDO = "RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;CLOSE ALL;UNLISTEN *;DISCARD TEMP;DISCARD SEQUENCES"

SESSION_RESET = f"BEGIN;{_UNDO};COMMIT"
"""Undoes what a user left in a session, and keeps its prepared statements: to stand in front of the first statements of
the next user, in one simple-protocol call with them, where it costs microseconds; alone it costs a round trip.

It is a transaction of its own. Inside the next user's it would come too late, since BEGIN takes over what
`default_transaction_read_only` says at that moment, and a ROLLBACK would bring back all that it had undone.

It leaves two things to whoever folds it. Session-level advisory locks: `pg_advisory_unlock_all()` costs as a statement
what all of this costs, and nearly nothing inside a function that is called anyway. And statements of SQL's own PREPARE,
which are to be refused."""

UNFOLDED_RESET = f"{_UNDO};SELECT pg_advisory_unlock_all();SELECT FROM pg_prepared_statements WHERE from_sql"
"""The same as a call of its own, with everything. Its tag counts statements of SQL's own PREPARE: not even this undoes
them, so a session that has any is of no more use."""

IS_LIKE_NEW = "SELECT 0"
"""The tag of `UNFOLDED_RESET` when nothing is left."""

_TRANSACTION_TIMEOUT_SINCE = 170000
_OLDEST = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What the server is told of a session at its start. All in seconds; they survive `SESSION_RESET`.

    :param statement_timeout_s: for one statement.
    :param idle_in_transaction_timeout_s: for a transaction whose client does nothing; above the longest handler.
    :param transaction_timeout_s: for a whole transaction, where the server knows that (PostgreSQL 17).
    :param lock_timeout_s: for one lock.
    :param check_interval_s: how often a running statement looks whether its client is still there.
    :param keepalive_idle_s: silence before a probe; also `keepalive_interval_s` between and `keepalive_count` of them.
        For both ends of the line.
    :param unacknowledged_s: how long sent bytes may stay unacknowledged (tcp_user_timeout). For both ends of the line.
    :param answer_grace_s: how much longer than `statement_timeout_s` a client waits for an answer. The server has ended
        the statement by then, so the line is dead.
    :param pooler: a transaction pooler stands in between. Then the start packet holds the application_name alone,
        statements are not cached (the driver's `statement_cache_size=0`: a fetch costs 2 to 3 times as much), and
        sessions are not reset, since the next statement may meet another one. Timeouts are then for SET LOCAL, and
        locks of the session, LISTEN and SET are of no use. Consumers need their sessions: give those none.
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
    answer_grace_s: float = 5.0
    pooler: bool = False

    @classmethod
    def for_handlers(cls, handler_timeout_s: float) -> SessionSettings:
        """Return settings that let a handler have its time, and end a session soon after that."""
        return cls(
            statement_timeout_s=handler_timeout_s + 2,
            idle_in_transaction_timeout_s=handler_timeout_s + 10,
            transaction_timeout_s=handler_timeout_s + 20,
        )

    @property
    def command_timeout_s(self) -> float:
        """How long a client waits for an answer that has no deadline of its own, seconds."""
        return self.statement_timeout_s + self.answer_grace_s

    def server_settings(self, server_version_num: int = _OLDEST) -> dict[str, str]:
        """Return what goes into the start packet besides the application_name.

        :param server_version_num: as the server's setting of that name. A setting that it does not know would be
            refused together with the connection; without a version, all servers know what is returned.
        """
        if self.pooler:
            return {}
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
        if self.transaction_timeout_s is not None and server_version_num >= _TRANSACTION_TIMEOUT_SINCE:
            settings["transaction_timeout"] = _milliseconds(self.transaction_timeout_s)
        return settings


def _milliseconds(seconds: float) -> str:
    # 0 would mean "no limit".
    return str(max(1, round(seconds * 1000)))
