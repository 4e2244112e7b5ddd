"""The transactional inbox: claim, attempt, receipt. Front door of the package; nothing here knows the broker.

envelope, states, outcomes, policy      values
attempt                                 the attempt machine, over claiming, running, company and tx
members, debts                          who lives, and what it owes
delivering, tries, exhaustions          what becomes of an exhausted message's record
messages, replays, replay_job           what operators see and do
sweep                                   what no copy comes for
oversize                                what is too large to go on record
bounds, retention                       how much is kept on record, and how long
migrate, partitions, server_checks      the database's side
"""

from inbox.attempt import Inbox
from inbox.backoff import Backoff
from inbox.bounds import Bound, count_open
from inbox.company import Company
from inbox.debts import Debts
from inbox.delivering import Deliverer
from inbox.envelope import Attempt, Envelope, ExhaustionRecord, Message, message_key, unidentified_key
from inbox.errors import (
    AttemptLost,
    ExhaustionLost,
    InboxError,
    InvalidTransition,
    MigrationChanged,
    MigrationFailed,
    OwnershipLost,
    PrivilegesMissing,
    ReplayBusy,
    ReplayError,
    ReplayMissing,
    ReplayOver,
    SchemaBusy,
    SchemaDenied,
    SchemaError,
    SchemaForeign,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    TxBroken,
    TxDead,
    TxError,
    TxRefused,
    UnsafeServer,
)
from inbox.faults import Overrides
from inbox.members import Member, build
from inbox.migrate import migrate, migrations, pending
from inbox.outcomes import Outcome, Reject, Retry
from inbox.partitions import keep as keep_partitions
from inbox.policy import Policy
from inbox.probe import blocked, is_read_only
from inbox.retention import Cleaner, Horizons
from inbox.server_checks import check_operator, check_server
from inbox.states import State
from inbox.sweep import Sweeper, Swept
from inbox.tx import Tx

__all__ = [
    "Attempt",
    "AttemptLost",
    "Backoff",
    "Bound",
    "Cleaner",
    "Company",
    "Debts",
    "Deliverer",
    "Envelope",
    "ExhaustionLost",
    "ExhaustionRecord",
    "Horizons",
    "Inbox",
    "InboxError",
    "InvalidTransition",
    "Member",
    "Message",
    "MigrationChanged",
    "MigrationFailed",
    "Outcome",
    "Overrides",
    "OwnershipLost",
    "Policy",
    "PrivilegesMissing",
    "Reject",
    "ReplayBusy",
    "ReplayError",
    "ReplayMissing",
    "ReplayOver",
    "Retry",
    "SchemaBusy",
    "SchemaDenied",
    "SchemaError",
    "SchemaForeign",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "State",
    "Sweeper",
    "Swept",
    "Tx",
    "TxBroken",
    "TxDead",
    "TxError",
    "TxRefused",
    "UnsafeServer",
    "blocked",
    "build",
    "check_operator",
    "check_server",
    "count_open",
    "is_read_only",
    "keep_partitions",
    "message_key",
    "migrate",
    "migrations",
    "pending",
    "unidentified_key",
]
