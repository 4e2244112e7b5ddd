"""No handler ends its transaction unseen: what it ends is never stamped, and it is told."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from inbox import Attempt, Tx, TxBroken, TxRefused
from inbox.outcomes import Processed, Waiting
from tests.support.databases import Database
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    assert_charged,
    done_next_time,
    message,
    standing,
)
from tests.support.ledger import INSERT


def raw(tx: Tx) -> asyncpg.Connection[Any]:
    """Return the session behind a tx, as a handler could that does not care for what is private."""
    return tx._connection


RAW_ENDINGS = {
    "commit": ("COMMIT",),
    "commit and begin": ("COMMIT", "BEGIN"),
    "commit and chain": ("COMMIT AND CHAIN",),
    "rollback": ("ROLLBACK",),
    "rollback and begin": ("ROLLBACK", "BEGIN"),
    "rollback and chain": ("ROLLBACK AND CHAIN",),
    "commit in a string of its own": ("select 1; COMMIT; BEGIN",),
    "commit and a savepoint of the same name": ("COMMIT", "BEGIN", "SAVEPOINT s_{claim_id}"),
    "prepare transaction": ("PREPARE TRANSACTION 'gone'",),
}
COMMITS = ("commit", "commit and begin", "commit and chain")


@HOT_AND_COUNTED
@pytest.mark.parametrize("ending", RAW_ENDINGS)
async def test_a_transaction_that_was_ended_behind_the_tx_is_never_stamped(
    process: StartProcess, database: Database, ending: str, redelivered: bool
) -> None:
    one = await process()
    committed = sum("COMMIT" in text for text in RAW_ENDINGS[ending])

    async def end(attempt: Attempt, tx: Tx) -> None:
        for text in RAW_ENDINGS[ending]:
            try:
                await raw(tx).execute(text.format(claim_id=attempt.claim_id.hex))
            except asyncpg.ObjectNotInPrerequisiteStateError:
                assert ending == "prepare transaction"  # not configured, and the transaction is gone for that

    outcome = await one.attempt(message(), Handler(end), redelivered=redelivered)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="inbox.errors.TxBroken")
    # What the handler itself committed stays committed: nothing can undo that.
    await assert_charged(database, "inbox.errors.TxBroken", effects=min(committed, 1))
    assert "ended the attempt's transaction" in await database.fetchval("select error_text from inbox.attempt")
    await database.execute("delete from ledger")
    await done_next_time(one)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("ending", ["commit and begin", "rollback and begin"])
async def test_a_statement_after_the_transaction_was_ended_behind_the_tx_is_undone(
    process: StartProcess, database: Database, ending: str
) -> None:
    one = await process()

    async def end(attempt: Attempt, tx: Tx) -> None:
        for text in RAW_ENDINGS[ending]:
            await raw(tx).execute(text)
        await tx.execute(INSERT, "after", attempt.number, "handler")

    assert isinstance(await one.attempt(message(), Handler(end)), Waiting)
    assert await database.fetchval("select count(*) from ledger where message_id = 'after'") == 0
    await assert_charged(database, "inbox.errors.TxBroken", effects=int(ending in COMMITS))


async def test_a_tx_whose_transaction_is_gone_says_so_at_its_next_use(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def end(_: Attempt, tx: Tx) -> None:
        await raw(tx).execute("ROLLBACK")
        with pytest.raises(TxBroken, match="ended the attempt's transaction"):
            await tx.fetch("select 1")
        with pytest.raises(TxBroken):
            await tx.execute(INSERT, "m-1", 1, "outside of any transaction")

    await one.attempt(message(), Handler(end))
    await assert_charged(database, "inbox.errors.TxBroken")


@pytest.mark.parametrize("ending", [ValueError("no"), asyncio.CancelledError()], ids=["raises", "cancels"])
async def test_a_failure_after_a_raw_commit_is_recorded_under_the_key(
    process: StartProcess, database: Database, ending: BaseException
) -> None:
    one = await process()

    async def end(_: Attempt, tx: Tx) -> None:
        await raw(tx).execute("COMMIT")
        raise ending

    await one.attempt(message(), Handler(end))
    await assert_charged(
        database, type(ending).__qualname__ if isinstance(ending, ValueError) else CANCELLED, effects=1
    )


CANCELLED = "asyncio.exceptions.CancelledError"
REFUSED_BY_TX = [
    "commit",
    "COMMIT AND CHAIN",
    "end",
    "rollback",
    "abort",
    "begin",
    "start transaction",
    "savepoint s",
    "release s",
    "prepare transaction 'x'",
    ";/* a /* b */ */ --c\n commit",
    "--c\rcommit",
    "set session characteristics as transaction read only",
    "discard all",
    "listen c",
]


@pytest.mark.parametrize("statement", REFUSED_BY_TX)
async def test_the_tx_refuses_to_end_its_transaction_and_the_handler_may_go_on(
    process: StartProcess, database: Database, statement: str
) -> None:
    one = await process()

    async def end(_: Attempt, tx: Tx) -> None:
        for call in (tx.execute, tx.fetch, tx.fetchrow, tx.fetchval):
            with pytest.raises(TxRefused):
                await call(statement)
        with pytest.raises(TxRefused):
            await tx.executemany(statement, [()])
        with pytest.raises(TxRefused):
            await anext(tx.cursor(statement))

    assert await one.attempt(message(), Handler(end)) == Processed(1)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize(
    "statement",
    [
        "do $$ begin commit; end $$",
        "do $$ begin rollback; end $$",
        "call commits()",
        "do $$ begin execute 'commit'; end $$",
        "select 1; commit",
        "select 1; rollback; begin",
    ],
)
async def test_a_commit_hidden_from_the_tx_is_refused_by_the_server(
    process: StartProcess, database: Database, statement: str
) -> None:
    one = await process()
    await database.execute("create procedure commits() language plpgsql as $$ begin commit; end $$")

    async def end(_: Attempt, tx: Tx) -> None:
        await tx.execute(statement)

    assert isinstance(await one.attempt(message(), Handler(end)), Waiting)
    found = await standing(database, message())
    assert found == Standing(receipts=0, effects=0, state="waiting", attempts=(("failed", True),))
    assert found.errors[0] is not None
    assert found.errors[0].startswith("asyncpg.")
    await done_next_time(one)


async def test_without_arguments_two_statements_in_one_string_are_refused(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def two(_: Attempt, tx: Tx) -> None:
        for call in (tx.execute, tx.fetch, tx.fetchrow, tx.fetchval):
            with pytest.raises(asyncpg.PostgresSyntaxError, match="multiple commands"):
                async with tx.savepoint():
                    await call("insert into ledger (message_id, attempt, writer) values ('m-1', 1, 'x'); select 1")

    assert await one.attempt(message(), Handler(two)) == Processed(1)
    assert await standing(database, message()) == PROCESSED
