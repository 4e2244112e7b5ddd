"""Messages as operators see them, on a real database: found by what is known of them, told whole, discarded once."""

from __future__ import annotations

import os
from uuid import uuid4

import pytest

from inbox.discards import DiscardAnswer, discard
from inbox.messages import Filter, Identity, Story, body, count, find, named, story
from inbox.outcomes import Absorbed, Contended, Processed
from inbox.states import State
from tests.support.databases import Database
from tests.support.inboxes import NO_PAUSE, Handler, Process, StartProcess, message, standing, succeed
from tests.support.operators import WHY, exhausted, many_exhausted, rejected, row_of, waiting


async def told(database: Database, message_id: str) -> Story:
    """Return the story of the one message that has this id."""
    connection = await database.connect()
    (identity,) = await named(connection, message_id)
    found = await story(connection, identity)
    assert found is not None
    return found


async def ids(database: Database, chosen: Filter) -> list[str]:
    return [row.message_id for row in await find(await database.connect(), chosen)]


async def test_messages_are_found_by_each_condition_and_by_all_together(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await exhausted(one, "e-1")
    await exhausted(one, "e-2", consumer="audit", error=KeyError("x"))
    await rejected(one, "r-1")
    await waiting(one, "w-1")
    assert await ids(database, Filter()) == ["e-1", "e-2", "r-1", "w-1"]
    assert await ids(database, Filter(consumer="audit")) == ["e-2"]
    assert await ids(database, Filter(states=frozenset({State.REJECTED, State.WAITING}))) == ["r-1", "w-1"]
    assert await ids(database, Filter(types=frozenset({"order.cancelled"}))) == []
    assert await ids(database, Filter(error_classes=frozenset({"KeyError"}))) == ["e-2"]
    assert await ids(database, Filter(error_classes=frozenset({"Reject"}))) == ["r-1"]
    ended = (await row_of(database, message("e-1").key)).changed_at
    assert await ids(database, Filter(until=ended)) == []
    assert await ids(database, Filter(since=ended, consumer="billing")) == ["e-1", "r-1", "w-1"]
    assert await count(await database.connect(), Filter(consumer="billing")) == {
        State.EXHAUSTED: 1,
        State.REJECTED: 1,
        State.WAITING: 1,
    }


async def test_pages_follow_each_other_without_a_gap_or_a_repeat(database: Database) -> None:
    await many_exhausted(database, 25)
    connection = await database.connect()
    seen: list[str] = []
    page = await find(connection, Filter(), limit=10)
    while page:
        seen += [row.message_id for row in page]
        page = await find(connection, Filter(), after=page[-1], limit=10)
    assert seen == [f"m-{number}" for number in range(1, 26)]


async def test_one_message_id_names_every_message_that_has_it(process: StartProcess, database: Database) -> None:
    one = await process()
    await exhausted(one, "m-1")
    await exhausted(one, "m-1", consumer="audit")
    await exhausted(one, "m-1", source="/other")
    connection = await database.connect()
    found = await named(connection, "m-1")
    assert [(each.consumer, each.source) for each in found] == [
        ("audit", "/shop"),
        ("billing", "/other"),
        ("billing", "/shop"),
    ]
    assert await named(connection, "m-1", consumer="billing", source="/other") == [found[1]]
    assert await named(connection, str(found[0].key)) == [found[0]]
    assert await named(connection, "m-2\x00") == []


async def test_a_story_tells_each_attempt_with_its_process_and_its_error(
    process: StartProcess, database: Database
) -> None:
    (failed,) = await exhausted(await process(), "m-1")
    found = await told(database, "m-1")
    assert (found.type, found.processed_at, found.history) == ("order.placed", None, ())
    assert found.row is not None and found.row.state is State.EXHAUSTED and found.row.reason == "attempts"
    (attempt,) = found.attempts
    assert (attempt.outcome, attempt.charged, attempt.pid) == ("failed", True, os.getpid())
    assert (attempt.error_class, attempt.error_text) == ("ValueError", "no")
    assert attempt.error_trace is not None and attempt.error_trace.endswith("ValueError: no\n")
    (record,) = found.exhaustions
    assert (record.key, record.generation) == (failed.key, 1)


async def test_a_message_that_failed_and_then_succeeded_keeps_its_story(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    handler = Handler(ValueError("no"), succeed)
    await one.attempt(message(), handler, NO_PAUSE)
    assert await one.attempt(message(), handler, NO_PAUSE, redelivered=True) == Processed(2)
    found = await told(database, "m-1")
    assert found.row is None and found.processed_at is not None
    assert [(attempt.outcome, attempt.charged) for attempt in found.attempts] == [
        ("failed", True),
        ("processed", False),
    ]
    assert [event.event for event in found.history] == ["processed"]


async def test_a_message_that_was_processed_at_once_is_its_receipt(process: StartProcess, database: Database) -> None:
    sent = message()
    assert await (await process()).attempt(sent, Handler()) == Processed(1)
    connection = await database.connect()
    assert await named(connection, "m-1") == []
    identity = Identity(key=sent.key, consumer=sent.consumer, source=sent.source, message_id=sent.message_id)
    found = await story(connection, identity)
    assert found is not None
    assert (found.row, found.attempts, found.history, found.type) == (None, (), (), None)
    assert found.processed_at == await database.fetchval("select processed_at from inbox.receipt")
    unknown = Identity(key=uuid4(), consumer="billing", source="/shop", message_id="m-2")
    assert await story(connection, unknown) is None


async def test_bytes_are_kept_as_they_came_and_after_the_row_is_gone(process: StartProcess, database: Database) -> None:
    sent = b"\x00\xff not text"
    (failed,) = await exhausted(await process(), "m-1", body=sent)
    connection = await database.connect()
    assert await body(connection, failed.key) == sent
    await database.execute("delete from inbox.message")
    assert await body(connection, failed.key) == sent
    assert await body(connection, uuid4()) is None


@pytest.mark.parametrize("end", [exhausted, rejected, waiting], ids=lambda end: end.__name__)
async def test_a_discarded_message_starts_nothing_any_more_and_says_who_and_why(
    end: object, process: StartProcess, database: Database
) -> None:
    one = await process()
    (gone,) = await end(one, "m-1")  # type: ignore[operator]
    seen = await row_of(database, gone.key)
    connection = await database.connect()
    assert await discard(connection, seen, **WHY) is DiscardAnswer.DISCARDED
    handler = Handler()
    assert await one.attempt(gone, handler, NO_PAUSE, redelivered=True) == Absorbed(State.DISCARDED)
    assert handler.calls == []
    assert (await standing(database, gone)).effects == 0
    (event,) = (await told(database, "m-1")).history
    assert (event.event, event.was, event.by_whom, event.reason) == ("discarded", seen.state.value, *WHY.values())
    assert await discard(connection, seen, **WHY) is DiscardAnswer.CHANGED
    assert await discard(connection, await row_of(database, gone.key), **WHY) is DiscardAnswer.CHANGED


async def test_what_is_being_worked_on_is_not_discarded(process: StartProcess, database: Database) -> None:
    one = await process()
    (gone,) = await waiting(one, "m-1")
    seen = await row_of(database, gone.key)
    await database.execute("update inbox.message set due_at = now()")
    answers: list[DiscardAnswer] = []

    async def meanwhile(*_: object) -> None:
        answers.append(await discard(await database.connect(), seen, **WHY))
        assert await other.attempt(gone, Handler(), NO_PAUSE, redelivered=True) == Contended()

    other: Process = await process("other")
    assert await one.attempt(gone, Handler(meanwhile), NO_PAUSE, redelivered=True) == Processed(2)
    answers.append(await discard(await database.connect(), seen, **WHY))
    assert answers == [DiscardAnswer.CONTENDED, DiscardAnswer.PROCESSED]


async def test_a_discard_needs_a_name_and_a_reason_and_something_to_discard(
    process: StartProcess, database: Database
) -> None:
    (gone,) = await exhausted(await process(), "m-1")
    seen = await row_of(database, gone.key)
    connection = await database.connect()
    for wrong in ({"by_whom": " ", "reason": "x"}, {"by_whom": "ann", "reason": ""}):
        with pytest.raises(ValueError, match="needs"):
            await discard(connection, seen, **wrong)
    await database.execute("delete from inbox.message")
    assert await discard(connection, seen, **WHY) is DiscardAnswer.MISSING
