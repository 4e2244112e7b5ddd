"""An owner that was taken for dead comes back and settles what it owes; by then others have decided on its attempt."""

from __future__ import annotations

import asyncio

from inbox import Attempt, Policy, Tx
from inbox.outcomes import Ended, Processed, Unknown, Waiting
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import Handler, Process, StartProcess, message, standing, succeed

TWO = Policy(max_attempts=2, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=10.0)


async def _lose_it(process: Process, *, alone: bool = False) -> None:
    """Let a counted attempt of this process lose its session, and its process look dead for a while."""
    if alone:
        await process.database.execute("update inbox.message set suspect = true")

    async def lose(attempt: Attempt, tx: Tx) -> None:
        await process.vanish()

    outcome = await process.attempt(message(), Handler(lose, writes=False), TWO, redelivered=True)
    assert isinstance(outcome, Unknown), outcome
    assert process.debts.count == 1


async def test_a_message_that_was_exhausted_meanwhile_keeps_the_charges_that_ended_it(
    process: StartProcess, database: Database
) -> None:
    lost, judge = await process("lost"), await process("judge")
    failed = await judge.attempt(message(), Handler(ValueError("no")), TWO, redelivered=True)
    assert isinstance(failed, Waiting)
    await _lose_it(lost, alone=True)
    ended = await judge.attempt(message(), Handler(succeed), TWO, redelivered=True)
    assert isinstance(ended, Ended)
    await lost.pay()
    found = await standing(database, message())
    assert (found.state, found.reason) == ("exhausted", "attempts")
    assert found.attempts == (("failed", True), ("crashed", True))


async def test_a_death_that_was_none_does_not_use_up_the_free_one(process: StartProcess, database: Database) -> None:
    lost, judge = await process("lost"), await process("judge")
    await _lose_it(lost)
    failed = await judge.attempt(message(), Handler(ValueError("no")), TWO, redelivered=True)
    assert isinstance(failed, Waiting)
    assert (await standing(database, message())).attempts == (("crashed", False), ("failed", True))
    await lost.pay()
    assert (await standing(database, message())).attempts == (("aborted", False), ("failed", True))
    victim, last = await process("victim"), await process("last")
    await _lose_it(victim)
    await last.attempt(message(), Handler(succeed), TWO, redelivered=True)
    found = await standing(database, message())
    assert (found.receipts, found.effects) == (1, 1)


async def test_no_suspect_runs_beside_an_attempt_that_is_owed(process: StartProcess, database: Database) -> None:
    one, suspect = await process("one"), message("suspect")
    await one.attempt(suspect, Handler(ValueError("no")), TWO, redelivered=True)
    await _lose_it(one)
    await database.execute("update inbox.message set suspect = true where message_id = 'suspect'")
    trying = asyncio.create_task(one.attempt(suspect, Handler(message_id="suspect"), TWO, redelivered=True))
    await eventually(lambda: bool(one.company._suspects), what="the suspect waiting to be alone")
    await one.pay()
    assert await trying == Processed(2)
    assert (await standing(database, message())).attempts == (("aborted", False),)


async def test_nobody_runs_beside_an_attempt_that_is_owed_and_was_alone(
    process: StartProcess, database: Database
) -> None:
    one, other = await process("one"), message("other")
    await one.attempt(message(), Handler(ValueError("no")), TWO, redelivered=True)
    await _lose_it(one, alone=True)
    trying = asyncio.create_task(one.attempt(other, Handler(message_id="other"), TWO))
    await eventually(lambda: bool(one.company._ordinary), what="the other one waiting for its turn")
    await one.pay()
    assert await trying == Processed(1)
    assert (await standing(database, message())).attempts == (("failed", True), ("aborted", False))
