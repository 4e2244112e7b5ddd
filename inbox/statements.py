"""The simple-protocol calls around an attempt, assembled in one place.

A claim and a stamp are several statements in one round trip, which only the simple protocol can do, and it takes no
arguments. So literals stand in the text, and only of one kind: a UUID, written as 32 hex digits by `uuid.UUID`, whose
characters no quoting rule touches, whatever `standard_conforming_strings` says. All other values travel as arguments
of named queries.
"""

from __future__ import annotations

import secrets
from hashlib import blake2s
from uuid import UUID

from pools import SESSION_RESET

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
ROLLBACK = "ROLLBACK"
COMMIT = "COMMIT"

_SECRET = secrets.token_bytes(16)


def literal(value: UUID) -> str:
    """Return a UUID as an SQL literal: 32 hex digits between quotes, cast."""
    return f"'{UUID(bytes=value.bytes).hex}'::uuid"


def savepoint_name(claim_id: UUID) -> str:
    """Return the name of the claim's savepoint.

    RELEASE of it is the proof, so a handler, which knows its claim id, must not be able to make one of that name.
    """
    return f"s_{blake2s(claim_id.bytes, digest_size=16, key=_SECRET).hexdigest()}"


def claim(key: UUID, claim_id: UUID) -> str:
    """The hot path's first call: fresh session state, BEGIN, the lock, the savepoint; the verdict is in the last tag.

    The lock is tried before the savepoint, or ROLLBACK TO would free it; the look is a statement of its own, so that
    its snapshot is taken after the lock.
    """
    arguments = f"{literal(key)},{literal(claim_id)}"
    return (
        f"{SESSION_RESET};{BEGIN};CALL inbox.lock({arguments});"
        f"SAVEPOINT {savepoint_name(claim_id)};SELECT FROM inbox.look({arguments})"
    )


def hold(key: UUID) -> str:
    """The counted path's first call: fresh session state, the session's lock; the verdict is in the last tag."""
    return f"{SESSION_RESET};SELECT FROM inbox.hold({literal(key)})"


def begin(claim_id: UUID) -> str:
    """The counted path's transaction: BEGIN and the claim's savepoint."""
    return f"{BEGIN};SAVEPOINT {savepoint_name(claim_id)}"


def roll_back_to(claim_id: UUID) -> str:
    """Undo the handler's effects and keep the claim."""
    return f"ROLLBACK TO SAVEPOINT {savepoint_name(claim_id)}"


def stamp_alone(key: UUID, claim_id: UUID, *, counted: bool) -> str:
    """The stamp of a claim without its handler's effects, undone again: what it meets is not the handler's doing."""
    undo = roll_back_to(claim_id)
    return f"{undo};{_mark(key, claim_id, counted=counted)};{undo}"


def stamp(key: UUID, claim_id: UUID, *, counted: bool) -> str:
    """The last call of a success; its tag must be COMMIT.

    Constraints first: a deferred violation must fail inside the claim's savepoint, where the failure can still be
    recorded under the lock. A handler may have taken a role that sees no more than one tenant; the inbox is not the
    tenant's. TO DEFAULT undoes a handler's own `synchronous_commit`, and keeps a stricter one that the server demands;
    the procedure then sees to it that it is strict enough. The tag alone proves nothing (after a handler's ROLLBACK a
    receipt and COMMIT would answer COMMIT too): RELEASE of the claim's savepoint fails unless this still is the
    claim's transaction.
    """
    return _committing(_mark(key, claim_id, counted=counted), claim_id)


def savepoint(claim_id: UUID) -> str:
    """The savepoint of a try, set when its record is locked: undoing the handler's effects keeps that lock."""
    return f"SAVEPOINT {savepoint_name(claim_id)}"


def acknowledge(record_id: UUID, key: UUID, try_id: UUID) -> str:
    """The last call of a try that went well: as `stamp`, with an acknowledgement in place of the receipt."""
    return _committing(_acknowledgement(record_id, key, try_id), try_id)


def acknowledge_alone(record_id: UUID, key: UUID, try_id: UUID) -> str:
    """The acknowledgement without its handler's effects, undone again; as `stamp_alone`."""
    undo = roll_back_to(try_id)
    return f"{undo};{_acknowledgement(record_id, key, try_id)};{undo}"


def _acknowledgement(record_id: UUID, key: UUID, try_id: UUID) -> str:
    return f"CALL inbox.acknowledge_try({literal(record_id)},{literal(key)},{literal(try_id)})"


def _committing(mark: str, claim_id: UUID) -> str:
    return (
        f"SET CONSTRAINTS ALL IMMEDIATE;SET LOCAL role TO DEFAULT;SET LOCAL synchronous_commit TO DEFAULT;{mark};"
        f"RELEASE SAVEPOINT {savepoint_name(claim_id)};{COMMIT}"
    )


def _mark(key: UUID, claim_id: UUID, *, counted: bool) -> str:
    if counted:
        return f"CALL inbox.stamp_counted({literal(key)},{literal(claim_id)})"
    return f"CALL inbox.stamp({literal(key)})"
