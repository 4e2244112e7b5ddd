"""Errors of the inbox, grouped by what a caller can do about them.

    InboxError
    ├── SchemaError          run `inbox-fleet migrate`, or deploy the build that fits the database
    │   ├── SchemaMissing
    │   ├── SchemaTooOld
    │   ├── SchemaTooNew
    │   ├── SchemaForeign
    │   ├── SchemaBusy
    │   ├── SchemaDenied
    │   └── MigrationChanged
    ├── MigrationFailed      mend what the server names; nothing of that migration was applied
    ├── PrivilegesMissing    grant what it names
    ├── UnsafeServer         change the named setting: a commit would promise less than this product does
    ├── InvalidTransition    a bug: an event met a state that does not know it
    ├── OwnershipLost        somebody else settled what this worker believed to own
    │   ├── AttemptLost
    │   └── ExhaustionLost
    ├── ReplayError          a replay job that cannot be worked on as asked
    │   ├── ReplayMissing
    │   ├── ReplayBusy
    │   └── ReplayOver
    └── TxError              a handler used its transaction in a way that cannot be honoured
        ├── TxDead
        ├── TxRefused
        └── TxBroken

A handler raises `Reject` or `Retry`; they are answers, not errors of the inbox, and stand in `inbox.outcomes`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID


class InboxError(Exception):
    """Root of everything that the inbox raises."""


class SchemaError(InboxError):
    """The database's inbox schema is not the one this build works with."""


class SchemaMissing(SchemaError):
    """There is no inbox schema in this database."""

    def __init__(self, *, needed: int) -> None:
        self.needed = needed
        super().__init__(f"this database has no inbox schema (version {needed} is needed): run `inbox-fleet migrate`")


class SchemaTooOld(SchemaError):
    """Migrations of this build have not been applied yet."""

    def __init__(self, *, found: int, needed: int) -> None:
        self.found, self.needed = found, needed
        super().__init__(
            f"the inbox schema is at version {found}, this build needs {needed}: run `inbox-fleet migrate`"
        )


class SchemaTooNew(SchemaError):
    """A later build has migrated this database."""

    def __init__(self, *, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(
            f"the inbox schema is at version {found}, this build knows {known} at most: deploy the newer build"
        )


class SchemaForeign(SchemaError):
    """There is a schema `inbox` that is not known to be this product's, so nothing is done to it."""

    def __init__(self, *, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"this database has a schema `inbox`, but {problem}. If it is ours, restore the rows of inbox.migration "
            "from a backup; if it is not, rename it, or use another database; if nothing in it is needed, drop it. "
            "Then run `inbox-fleet migrate`"
        )


class SchemaBusy(SchemaError):
    """Another migration of the same database did not end in time."""

    def __init__(self, *, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(
            f"another migration of this database still runs after {waited_s:g} s: wait for it, or end its session"
        )


class SchemaDenied(SchemaError):
    """The role that connects may not make or change the schema."""

    def __init__(self, *, role: str, problem: str) -> None:
        self.role, self.problem = role, problem
        super().__init__(
            f"role {role!r} may not migrate this database ({problem}): run `inbox-fleet migrate` as the role that owns "
            "the schema `inbox`, or the first time as one with CREATE on the database"
        )


class MigrationChanged(SchemaError):
    """An applied migration's file is no longer the file that was applied."""

    def __init__(self, *, number: int, name: str) -> None:
        self.number, self.name = number, name
        super().__init__(
            f"migration {number:04d}_{name} was changed after it had been applied to this database: "
            "restore the file and put the change into a new migration"
        )


class MigrationFailed(InboxError):
    """The server refused a statement of a migration, which is undone.

    :param sqlstate: of the server's error.
    :param problem: its text.
    """

    def __init__(self, *, number: int, name: str, sqlstate: str, problem: str) -> None:
        self.number, self.name, self.sqlstate, self.problem = number, name, sqlstate, problem
        super().__init__(
            f"migration {number:04d}_{name} failed with SQLSTATE {sqlstate}: {problem}. Nothing of it was applied, and "
            "those before it stay: mend what the server names, and run `inbox-fleet migrate` again"
        )


_MAY_RUN = {
    "owner": ", or who owns it,",
    "admin": ", or a role with ADMIN OPTION on the one that is granted,",
    "superuser": "",
}


class PrivilegesMissing(InboxError):
    """The role that connects may not do what a fleet, or an operator, does.

    :param grants: statements that give it what it lacks.
    :param work: what it is about, as a person says it.
    :param who: who may run the statements: "owner" of the schema and what is in it, "admin" for the ADMIN OPTION on the
        role that is granted, or "superuser".
    """

    def __init__(
        self,
        *,
        role: str,
        grants: Sequence[str],
        work: str = "all that a fleet does",
        who: Collection[str] = ("owner",),
    ) -> None:
        self.role, self.grants = role, tuple(grants)
        # Who may run statements of one kind may not run those of another.
        also = _MAY_RUN[next(iter(who))] if len(set(who)) == 1 else ""
        super().__init__(
            f"role {role!r} may not do {work} in the schema `inbox`: let a superuser{also} run: {'; '.join(grants)}"
        )


class UnsafeServer(InboxError):
    """The database server or session is set up so that a commit, or a text, could be lost."""

    def __init__(self, *, setting: str, value: str, allowed: str, why: str) -> None:
        self.setting, self.value, self.allowed = setting, value, allowed
        super().__init__(f"the database has {setting} = {value}, allowed is {allowed}: {why}")


class InvalidTransition(InboxError):
    """The transition table has no entry for this event in this state."""

    def __init__(self, *, state: str, event: str) -> None:
        self.state, self.event = state, event
        super().__init__(f"event {event!r} is not possible in state {state!r}")


class OwnershipLost(InboxError):
    """A guarded write matched no row: its owner is somebody else by now."""


class AttemptLost(OwnershipLost):
    """The attempt was settled by somebody else; nothing was written."""

    def __init__(self, *, key: UUID, claim_id: UUID) -> None:
        self.key, self.claim_id = key, claim_id
        super().__init__(f"attempt {claim_id} no longer owns message {key}: nothing was written")


class ExhaustionLost(OwnershipLost):
    """The try of an exhaustion record is stale: the record is acknowledged, or somebody else tries it."""

    def __init__(self, *, record_id: UUID, try_id: UUID) -> None:
        self.record_id, self.try_id = record_id, try_id
        super().__init__(f"try {try_id} no longer owns exhaustion record {record_id}: nothing was acknowledged")


class ReplayError(InboxError):
    """A replay job that cannot be worked on as asked."""


class ReplayMissing(ReplayError):
    """There is no job of that id."""

    def __init__(self, *, replay_id: UUID) -> None:
        self.replay_id = replay_id
        super().__init__(f"there is no replay {replay_id}; `inbox-fleet replays list` shows those that there are")


class ReplayBusy(ReplayError):
    """Somebody else runs the job. One runs it at a time."""

    def __init__(self, *, replay_id: UUID, runner: str) -> None:
        self.replay_id, self.runner = replay_id, runner
        super().__init__(f"replay {replay_id} is being run by {runner}; `inbox-fleet replays cancel` ends it")


class ReplayOver(ReplayError):
    """The job is finished or cancelled, for good."""

    def __init__(self, *, replay_id: UUID, state: str) -> None:
        self.replay_id, self.state = replay_id, state
        left = "nothing of it is left to replay" if state == "finished" else "what is left of it needs another one"
        super().__init__(f"replay {replay_id} is {state}: {left}")


class TxError(InboxError):
    """A handler's use of its transaction that cannot be honoured."""


class TxDead(TxError):
    """The attempt that this transaction belonged to is over."""

    def __init__(self) -> None:
        super().__init__(
            "this tx is over: it lives exactly as long as its attempt, so finish its work before the handler returns"
        )


class TxRefused(TxError):
    """The statement is one that a handler may not send."""

    def __init__(self, *, keyword: str, advice: str) -> None:
        self.keyword = keyword
        super().__init__(f"tx refuses {keyword}: {advice}")


class TxBroken(TxError):
    """The transaction is not the claim's any more, or was aborted by an error that the handler swallowed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
