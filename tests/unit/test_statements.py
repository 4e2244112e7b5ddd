"""The simple-protocol calls hold no literal but hex UUIDs, and their parts stand in the order that the proof needs."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbox import statements
from pools import SESSION_RESET

KEY, CLAIM = UUID(int=0xABC), UUID(int=2**128 - 1)
LITERAL = re.compile(r"'[0-9a-f]{32}'::uuid")

CALLS = {
    "claim": lambda key, claim_id: statements.claim(key, claim_id),
    "hold": lambda key, _: statements.hold(key),
    "begin": lambda _, claim_id: statements.begin(claim_id),
    "roll_back_to": lambda _, claim_id: statements.roll_back_to(claim_id),
    "stamp": lambda key, claim_id: statements.stamp(key, claim_id, counted=False),
    "stamp counted": lambda key, claim_id: statements.stamp(key, claim_id, counted=True),
}


class Hostile(UUID):
    """What a careless or hostile subclass could say about itself."""

    @property
    def hex(self) -> str:
        return "'; drop schema inbox cascade; --"

    def __str__(self) -> str:
        return self.hex

    def __format__(self, spec: str) -> str:
        return self.hex


@pytest.mark.parametrize("name", CALLS)
@given(key=st.uuids(), claim_id=st.uuids())
def test_no_literal_stands_in_a_call_but_uuids_in_hex(name: str, key: UUID, claim_id: UUID) -> None:
    call = CALLS[name](key, claim_id)
    bare = LITERAL.sub("", call)
    assert not set(bare) & set("'\"\\$"), bare
    assert call.isascii()


@pytest.mark.parametrize("name", CALLS)
def test_a_subclass_of_uuid_cannot_put_text_into_a_call(name: str) -> None:
    assert CALLS[name](Hostile(int=1), Hostile(int=2)) == CALLS[name](UUID(int=1), UUID(int=2))


def test_what_is_no_uuid_is_refused() -> None:
    for impostor in ("'; drop schema inbox; --", b"0123456789abcdef", 7):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            statements.literal(impostor)  # type: ignore[arg-type]


def test_a_claim_takes_the_lock_before_its_savepoint_and_looks_after_both() -> None:
    parts = statements.claim(KEY, CLAIM).split(";")
    assert parts[:-4] == SESSION_RESET.split(";")
    assert parts[-4] == "BEGIN ISOLATION LEVEL READ COMMITTED"
    assert parts[-3].startswith("CALL inbox.lock(")
    assert parts[-2] == f"SAVEPOINT {statements.savepoint_name(CLAIM)}"
    assert parts[-1].startswith("SELECT FROM inbox.look(")


def test_a_counted_claim_resets_the_session_and_takes_its_lock_in_one_call() -> None:
    *reset, last = statements.hold(KEY).split(";")
    assert reset == SESSION_RESET.split(";")
    assert last.startswith("SELECT FROM inbox.hold(")
    assert statements.begin(CLAIM).startswith("BEGIN ISOLATION LEVEL READ COMMITTED;SAVEPOINT ")


@pytest.mark.parametrize("counted", [False, True])
def test_a_stamp_proves_by_releasing_the_claims_savepoint_between_receipt_and_commit(counted: bool) -> None:
    parts = statements.stamp(KEY, CLAIM, counted=counted).split(";")
    procedure = "CALL inbox.stamp_counted(" if counted else "CALL inbox.stamp("
    assert parts[0] == "SET CONSTRAINTS ALL IMMEDIATE"
    assert parts[1:3] == ["SET LOCAL role TO DEFAULT", "SET LOCAL synchronous_commit TO DEFAULT"]
    assert parts[3].startswith(procedure)
    assert len(parts) == 6
    assert parts[-2:] == [f"RELEASE SAVEPOINT {statements.savepoint_name(CLAIM)}", "COMMIT"]


@given(st.uuids(), st.uuids())
def test_every_claim_has_a_savepoint_of_its_own(one: UUID, other: UUID) -> None:
    assert (statements.savepoint_name(one) == statements.savepoint_name(other)) is (one == other)
