"""A database that cannot serve, or that has changed under an attempt, charges nobody."""

from __future__ import annotations

from typing import Any

import pytest

from inbox import Attempt, Reject, Tx, blocked
from inbox.outcomes import (
    Absorbed,
    Duplicate,
    Processed,
    Unavailable,
    Unknown,
    Waiting,
)
from inbox.states import State
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    message,
    standing,
)
from tests.support.relay import RelayBefore


@HOT_AND_COUNTED
@pytest.mark.parametrize("writes", [True, False], ids=["writes", "only reads"])
async def test_a_read_only_server_pauses_and_charges_nobody(
    process: StartProcess, database: Database, writes: bool, redelivered: bool
) -> None:
    one = await process()
    await database.execute(f"alter database {database.name} set default_transaction_read_only = on")
    await one.end_sessions()
    outcome = await one.attempt(message(), Handler(writes=writes), redelivered=redelivered)
    assert outcome == Unavailable(fault="ReadOnlySQLTransactionError (25006)", started=not redelivered)
    assert await blocked(one.pool) == "the database server is read-only"
    await database.execute(f"alter database {database.name} reset default_transaction_read_only")
    await one.pay()
    assert await standing(database, message()) == Standing(0, 0)
    await eventually(lambda: serves(one.pool), what="a pool whose sessions may write again")
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(1)


async def serves(pool: Any) -> bool:
    return await blocked(pool) is None


@HOT_AND_COUNTED
async def test_a_fault_of_the_server_that_a_handler_made_itself_makes_only_its_message_wait(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()

    async def demote(_: Attempt, tx: Tx) -> None:
        await tx.execute("set local transaction_read_only = on")
        await tx.execute("insert into ledger (message_id, attempt, writer) values ('m-1', 1, 'late')")

    outcome = await one.attempt(message(), Handler(demote), redelivered=redelivered)
    assert isinstance(outcome, Waiting)
    assert not outcome.charged
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))


@HOT_AND_COUNTED
async def test_a_server_that_cannot_be_reached_pauses_before_any_handler_is_called(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one, handler = await process(url=relay.url(database.url)), Handler()
    relay.refuse()
    outcome = await one.attempt(message(), handler, redelivered=redelivered)
    assert isinstance(outcome, Unavailable)
    assert not outcome.started
    assert handler.calls == []
    await relay.open()
    assert await one.attempt(message(), handler, redelivered=redelivered) == Processed(1)


@HOT_AND_COUNTED
async def test_without_a_partition_for_now_nothing_is_processed_and_nobody_is_charged(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()
    partitions = await database.fetch(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = 'inbox.receipt'::regclass"
    )
    for row in partitions:
        await database.execute(f"alter table inbox.receipt detach partition {row['name']}")
    outcome = await one.attempt(message(), Handler(), redelivered=redelivered)
    assert outcome == Unavailable(fault=NO_PARTITION, started=True)
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    reason = await blocked(one.pool)
    assert reason is not None
    assert "no partition of receipts or events covers now" in reason


NO_PARTITION = "CheckViolationError (23514)"


@HOT_AND_COUNTED
async def test_a_receipt_that_is_there_although_the_key_was_free_undoes_the_effects(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()

    async def somebody_else(_: Attempt, tx: Tx) -> None:
        await database.execute("insert into inbox.receipt (key) values ($1)", message().key)

    assert await one.attempt(message(), Handler(somebody_else), redelivered=redelivered) == Duplicate()
    await one.pay()
    assert await standing(database, message()) == Standing(receipts=1, effects=0)


@pytest.mark.parametrize("ending", [None, ValueError("no"), Reject("no")], ids=["success", "failure", "rejection"])
async def test_an_attempt_that_somebody_else_has_settled_writes_nothing(
    process: StartProcess, database: Database, ending: BaseException | None
) -> None:
    one = await process()

    async def lose_it(_: Attempt, tx: Tx) -> None:
        await database.execute(
            "update inbox.message set state = 'discarded', claim_id = null, reason = 'by hand', finished_at = now()"
        )
        if ending is not None:
            raise ending

    outcome = await one.attempt(message(), Handler(lose_it), redelivered=True)
    assert isinstance(outcome, Unknown)
    assert "AttemptLost" in outcome.fault
    assert await standing(database, message()) == Standing(0, 0, "discarded", (("started", True),), reason="by hand")
    assert await one.attempt(message(), Handler(), redelivered=True) == Absorbed(State.DISCARDED)


async def test_functions_that_a_migration_replaced_cost_no_attempt(process: StartProcess, database: Database) -> None:
    one = await process(lanes=1, headroom=0)
    await one.attempt(message("before"), Handler(ValueError("no"), message_id="before"), redelivered=True)

    async def recreate() -> None:
        for row in await database.fetch(
            "select pg_get_functiondef(oid) as text, oid::regprocedure::text as name from pg_proc "
            "where pronamespace = 'inbox'::regnamespace and prokind = 'f' "
            "and proname in ('start_attempt', 'record_outcome', 'settle_debt', 'look', 'hold')"
        ):
            await database.execute(f"drop function {row['name']}; {row['text']}")

    async def migrate_and_fail(_: Attempt, tx: Tx) -> None:
        await recreate()
        raise ValueError("no")

    await recreate()
    outcome = await one.attempt(message(), Handler(migrate_and_fail), redelivered=True)
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)
    assert await standing(database, message()) == PROCESSED
