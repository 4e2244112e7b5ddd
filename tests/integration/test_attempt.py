"""Deliveries, duplicates and copies: one effect, one receipt, nothing held by those who lose."""

from __future__ import annotations

import asyncio

import pytest

from inbox import Attempt, Tx
from inbox.outcomes import (
    Contended,
    Duplicate,
    Processed,
    Waiting,
)
from tests.support.databases import Database
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    message,
    standing,
)


@HOT_AND_COUNTED
async def test_a_delivery_has_one_effect_and_one_receipt_and_leaves_no_row(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, handler = await process(), Handler()
    assert await one.attempt(message(), handler, redelivered=redelivered) == Processed(1)
    assert await standing(database, message()) == PROCESSED
    assert [(attempt.number, attempt.generation) for attempt in handler.calls] == [(1, 1)]


@HOT_AND_COUNTED
async def test_a_duplicate_is_found_by_its_receipt_and_its_handler_is_not_called(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, other, handler = await process("one"), await process("other"), Handler()
    await one.attempt(message(), Handler())
    for copy_of in (one, other):
        assert await copy_of.attempt(message(), handler, redelivered=redelivered) == Duplicate()
    assert handler.calls == []
    assert await standing(database, message()) == PROCESSED


@HOT_AND_COUNTED
async def test_a_duplicate_takes_a_left_over_row_away(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()
    await one.attempt(message(), Handler(ValueError("no")))
    await database.execute("insert into inbox.receipt (key) values ($1)", message().key)
    assert await one.attempt(message(), Handler(), redelivered=redelivered) == Duplicate()
    assert await standing(database, message()) == Standing(receipts=1, effects=0)


async def test_every_attempt_has_a_claim_of_its_own(process: StartProcess, database: Database) -> None:
    one = await process()
    handler = Handler(ValueError("no"), ValueError("no"), ValueError("no"))
    for _ in range(3):
        await one.attempt(message(), handler)
    assert [attempt.number for attempt in handler.calls] == [1, 2, 3]
    claims = await database.fetch("select claim_id from inbox.attempt order by number")
    assert [row["claim_id"] for row in claims] == [attempt.claim_id for attempt in handler.calls]
    assert len({attempt.claim_id for attempt in handler.calls}) == 3


@HOT_AND_COUNTED
@pytest.mark.parametrize("in_one_process", [True, False], ids=["one process", "two processes"])
async def test_copies_that_come_while_one_runs_start_nothing_and_hold_nothing(
    process: StartProcess, database: Database, in_one_process: bool, redelivered: bool
) -> None:
    winner = await process("winner")
    loser = winner if in_one_process else await process("loser")
    works, may_end = asyncio.Event(), asyncio.Event()

    async def work(_: Attempt, tx: Tx) -> None:
        works.set()
        await may_end.wait()

    first = asyncio.create_task(winner.attempt(message(), Handler(work), redelivered=redelivered))
    await works.wait()
    copies = Handler()
    lost = await asyncio.gather(
        *(loser.attempt(message(), copies, redelivered=again) for again in (False, True, False, True))
    )
    assert lost == [Contended()] * 4
    sessions = await database.sessions(loser.application_name)
    in_transaction = [row["state"] for row in sessions if row["state"] != "idle"]
    # The counted winner's session is idle in its transaction too, and only the winner's.
    assert in_transaction == (["idle in transaction"] if in_one_process else [])
    assert loser.pool.statistics().in_use == (1 if in_one_process else 0)
    may_end.set()
    assert await first == Processed(1)
    assert copies.calls == []
    assert await loser.attempt(message(), copies) == Duplicate()
    assert await standing(database, message()) == PROCESSED


async def test_a_copy_that_was_contended_runs_when_the_first_one_has_failed(
    process: StartProcess, database: Database
) -> None:
    one, works, may_end = await process(), asyncio.Event(), asyncio.Event()

    async def fail(_: Attempt, tx: Tx) -> None:
        works.set()
        await may_end.wait()
        raise ValueError("no")

    first = asyncio.create_task(one.attempt(message(), Handler(fail)))
    await works.wait()
    assert await one.attempt(message(), Handler()) == Contended()
    may_end.set()
    assert isinstance(await first, Waiting)
    assert await one.attempt(message(), Handler()) == Processed(2)
    assert await standing(database, message()) == PROCESSED


async def test_many_copies_at_once_on_two_processes_have_one_effect(process: StartProcess, database: Database) -> None:
    one, other = await process("one"), await process("other")
    handlers = [Handler() for _ in range(8)]
    outcomes = await asyncio.gather(
        *(
            (one, other)[number % 2].attempt(message(), handler, redelivered=number % 3 == 0)
            for number, handler in enumerate(handlers)
        )
    )
    assert sum(isinstance(outcome, Processed) for outcome in outcomes) == 1
    assert all(isinstance(outcome, (Processed, Contended, Duplicate)) for outcome in outcomes), outcomes
    assert sum(len(handler.calls) for handler in handlers) == 1
    assert await standing(database, message()) == PROCESSED


async def test_each_consumer_remembers_a_message_for_itself(process: StartProcess, database: Database) -> None:
    one = await process()
    assert await one.attempt(message(consumer="billing"), Handler()) == Processed(1)
    assert await one.attempt(message(consumer="shipping"), Handler()) == Processed(1)
    assert await one.attempt(message(source="/other-shop"), Handler()) == Processed(1)
    assert await one.attempt(message(exchange="elsewhere", routing_key="moved"), Handler()) == Duplicate()
    assert await database.fetchval("select count(*) from ledger") == 3
