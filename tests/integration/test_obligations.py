"""What messages owe: found oldest first, read as found, and cleared only as found."""

from __future__ import annotations

from typing import Any

from inbox import obligations
from inbox.discards import discard
from inbox.obligations import Obligation, Owed
from inbox.states import State
from tests.support.databases import Database
from tests.support.inboxes import NO_PAUSE, Handler, StartProcess, ended
from tests.support.operators import ONCE, WHY, exhausted, rejected, replayed, row_of, waiting


async def found(database: Database, what: Owed, **options: Any) -> list[Obligation]:
    return await obligations.find(await database.connect(), what, "billing", **{"limit": 100, **options})


async def ids(database: Database, what: Owed) -> list[str]:
    return [each.message_id for each in await found(database, what)]


async def test_what_has_ended_owes_a_dead_letter_and_what_waits_owes_nothing(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await exhausted(one, "m-1")
    await rejected(one, "m-2")
    await waiting(one, "m-3")
    assert await ids(database, Owed.DEAD_LETTER) == ["m-1", "m-2"]
    assert await ids(database, Owed.COPY) == []
    assert await obligations.find(await database.connect(), Owed.DEAD_LETTER, "audit", limit=9) == []


async def test_pages_go_on_after_the_last_one_found(process: StartProcess, database: Database) -> None:
    await exhausted(await process(), *[f"m-{number}" for number in range(5)])
    first = await found(database, Owed.DEAD_LETTER, limit=2)
    rest = await found(database, Owed.DEAD_LETTER, after=first[-1])
    assert [each.message_id for each in first + rest] == [f"m-{number}" for number in range(5)]


async def test_a_replayed_message_owes_a_copy_and_its_dead_letter_no_more(
    process: StartProcess, database: Database
) -> None:
    (failing,) = await exhausted(await process(), "m-1")
    await replayed(database, failing.key)
    assert await ids(database, Owed.DEAD_LETTER) == []
    (owed,) = await found(database, Owed.COPY)
    assert (owed.key, owed.generation, owed.state) == (failing.key, 2, State.WAITING)
    owing = await obligations.read(await database.connect(), owed)
    assert owing is not None
    assert (owing.message, owing.ended_at) == (failing, None)


async def test_what_a_dead_letter_says_of_its_row_is_read_with_it(process: StartProcess, database: Database) -> None:
    (failing,) = await exhausted(await process(), "m-1", error=LookupError("no"))
    (owed,) = await found(database, Owed.DEAD_LETTER)
    owing = await obligations.read(await database.connect(), owed)
    assert owing is not None
    assert owing.message == failing
    assert (owing.reason, owing.error_class) == ("attempts", "LookupError")
    assert owing.ended_at == (await row_of(database, failing.key)).finished_at


async def test_an_obligation_is_cleared_once_and_moves_nothing_else(process: StartProcess, database: Database) -> None:
    (failing,) = await exhausted(await process(), "m-1")
    before = await row_of(database, failing.key)
    (owed,) = await found(database, Owed.DEAD_LETTER)
    connection = await database.connect()
    assert await obligations.clear(connection, owed)
    assert not await obligations.clear(connection, owed)
    after = await row_of(database, failing.key)
    assert before.dead_letter_needed and not after.dead_letter_needed
    assert (after.state, after.changed_at) == (before.state, before.changed_at)


async def test_what_was_asked_for_after_a_copy_was_sent_is_not_cleared_by_it(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    (failing,) = await exhausted(one, "m-1")
    await replayed(database, failing.key)
    (owed,) = await found(database, Owed.COPY)
    # Its copy arrives before the word of its confirm: an attempt fails, and the sweep finds the next copy lost.
    await one.attempt(failing, Handler(ValueError("no"), writes=False), NO_PAUSE, redelivered=True)
    assert await ids(database, Owed.COPY) == []
    await database.execute("update inbox.message set copy_needed = true, changed_at = inbox.clock()")
    connection = await database.connect()
    assert await obligations.read(connection, owed) is None
    assert not await obligations.clear(connection, owed)
    assert await ids(database, Owed.COPY) == ["m-1"]


async def test_a_copy_that_ends_its_message_leaves_no_copy_owed(process: StartProcess, database: Database) -> None:
    one = await process()
    (failing,) = await exhausted(one, "m-1")
    await replayed(database, failing.key)
    await one.attempt(failing, Handler(ValueError("no"), writes=False), NO_PAUSE, redelivered=True)
    await database.execute("update inbox.message set copy_needed = true")
    assert ended(await one.attempt(failing, Handler(), ONCE, redelivered=True))[0] is State.EXHAUSTED
    assert await ids(database, Owed.COPY) == []
    assert await ids(database, Owed.DEAD_LETTER) == ["m-1"]


async def test_a_discarded_message_owes_nothing(process: StartProcess, database: Database) -> None:
    (failing,) = await exhausted(await process(), "m-1")
    await discard(await database.connect(), await row_of(database, failing.key), **WHY)
    assert await ids(database, Owed.DEAD_LETTER) == []
