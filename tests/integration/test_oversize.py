"""What is too large to go on record is rejected before it is begun, when its bytes are elsewhere; never before that."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from inbox import Message
from inbox.discards import discard
from inbox.messages import Filter, find
from inbox.outcomes import Absorbed, Contended, Duplicate, Ended, Processed, Unavailable, Unkept, Waiting
from inbox.oversize import KEPT_BYTES, NotKept
from inbox.states import State
from tests.support.cleaning import clean, let_pass
from tests.support.databases import Database
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    Handler,
    Process,
    Standing,
    StartProcess,
    key_is_locked,
    message,
    standing,
)

BODY = bytes(range(256)) * 1200
TOO_LARGE = Ended(State.REJECTED, 0, "too_large")
REJECTED = Standing(receipts=0, effects=0, state="rejected", reason="too_large")
NOTHING = Standing(receipts=0, effects=0)


class Keeper:
    """Keeps what it is given, or raises an error in its stead; may be held up meanwhile."""

    def __init__(self, error: Exception | None = None, *, holds: bool = False) -> None:
        self.kept: list[Message] = []
        self.error = error
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        if not holds:
            self.go_on.set()

    async def __call__(self, message: Message) -> None:
        self.asked.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        self.kept.append(message)


async def tried(one: Process, keep: Keeper, handler: Handler | None = None, **options: Any) -> object:
    """Try a copy of the large message."""
    return await one.attempt(message(body=BODY), handler or Handler(), keep=keep, **options)


@HOT_AND_COUNTED
async def test_it_is_rejected_with_the_beginning_of_its_body_and_no_attempt(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, keep, unread = await process(), Keeper(), Handler()
    assert await tried(one, keep, unread, redelivered=redelivered) == TOO_LARGE
    assert keep.kept == [message(body=BODY)] and unread.calls == []
    assert await standing(database, message()) == REJECTED
    row = await database.fetchrow("select * from inbox.message")
    assert row is not None
    assert row["body"] == BODY[:KEPT_BYTES] and row["properties"] == message().properties
    assert (row["whole_bytes"], row["whole_sha256"]) == (len(BODY), sha256(BODY).digest())
    assert not row["dead_letter_needed"] and not row["copy_needed"]
    assert await database.fetchval("select count(*) from inbox.exhaustion") == 0
    assert not await key_is_locked(database, message())


@HOT_AND_COUNTED
async def test_what_nothing_has_taken_is_not_on_record(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()
    refusing = Keeper(NotKept("the queue is full"))
    assert await tried(one, refusing, redelivered=redelivered) == Unkept("the queue is full")
    assert await standing(database, message()) == NOTHING
    assert not await key_is_locked(database, message())
    assert await tried(one, Keeper(), redelivered=True) == TOO_LARGE


@HOT_AND_COUNTED
async def test_what_is_on_record_runs_on_though_less_is_allowed_by_now(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, keep = await process(), Keeper()
    failing = Handler(ValueError("no"))
    assert isinstance(await one.attempt(message(body=BODY), failing), Waiting)
    assert isinstance(await tried(one, keep, failing, redelivered=redelivered), Waiting)
    assert await database.fetchval("select body from inbox.message") == BODY
    assert await tried(one, keep, redelivered=redelivered) == Processed(3)
    assert keep.kept == []


@HOT_AND_COUNTED
async def test_a_copy_of_what_has_ended_is_absorbed_and_kept_by_nobody(
    process: StartProcess, redelivered: bool
) -> None:
    one, keep = await process(), Keeper()
    assert await tried(one, Keeper()) == TOO_LARGE
    assert await tried(one, keep, redelivered=redelivered) == Absorbed(State.REJECTED)
    processed = message("m-2", body=BODY)
    assert await one.attempt(processed, Handler(message_id="m-2")) == Processed(1)
    assert await one.attempt(processed, Handler(), keep=keep, redelivered=redelivered) == Duplicate()
    assert keep.kept == []


async def test_a_consumer_that_is_full_rejects_it_all_the_same(process: StartProcess, database: Database) -> None:
    one = await process()
    one.inbox._may_begin = lambda: False
    assert await tried(one, Keeper()) == TOO_LARGE
    assert await standing(database, message()) == REJECTED


async def test_while_it_is_being_kept_another_copy_is_contended_and_no_transaction_is_open(
    process: StartProcess, database: Database
) -> None:
    one, keep = await process(), Keeper(holds=True)
    keeping = asyncio.create_task(tried(one, keep))
    await keep.asked.wait()
    assert await tried(one, Keeper(AssertionError("not this one"))) == Contended()
    assert [session["state"] for session in await database.sessions(one.application_name)] == ["idle"] * 2
    keep.go_on.set()
    assert await keeping == TOO_LARGE
    assert len(keep.kept) == 1


async def test_a_session_that_is_lost_meanwhile_leaves_nothing_and_the_next_copy_has_it_kept_again(
    process: StartProcess, database: Database
) -> None:
    one, keep = await process(), Keeper(holds=True)
    keeping = asyncio.create_task(tried(one, keep))
    await keep.asked.wait()
    await one.end_sessions()
    keep.go_on.set()
    outcome = await keeping
    assert isinstance(outcome, Unavailable) and not outcome.started
    assert await standing(database, message()) == NOTHING
    assert await tried(one, keep, redelivered=True) == TOO_LARGE
    assert len(keep.kept) == 2
    assert one.debts.count == 0


async def test_a_lane_that_is_cancelled_meanwhile_leaves_nothing_and_no_lock(
    process: StartProcess, database: Database
) -> None:
    one, keep = await process(), Keeper(holds=True)
    keeping = asyncio.create_task(tried(one, keep))
    await keep.asked.wait()
    keeping.cancel()
    await asyncio.wait([keeping])
    assert keeping.cancelled()
    await one.end_sessions()
    assert await standing(database, message()) == NOTHING
    assert not await key_is_locked(database, message())


async def test_an_operator_sees_how_much_is_on_record_and_can_discard_it(
    process: StartProcess, database: Database
) -> None:
    assert await tried(await process(), Keeper()) == TOO_LARGE
    connection = await database.connect()
    (row,) = await find(connection, Filter(states=frozenset({State.REJECTED})))
    assert (row.body_bytes, row.kept_bytes, row.body_sha256) == (len(BODY), KEPT_BYTES, sha256(BODY).hexdigest())
    assert not row.is_whole and row.attempts == 0 and row.error_class is None
    assert await discard(connection, row, by_whom="ann", reason="a film, not an order") == "discarded"
    assert (await standing(database, message())).state == "discarded"


async def test_it_is_forgotten_after_its_time_like_any_other_and_owes_nothing_before(
    process: StartProcess, database: Database
) -> None:
    one, again = await process(), Keeper()
    assert await tried(one, Keeper()) == TOO_LARGE
    await let_pass(database, 29)
    assert "message" not in await clean(one)
    await let_pass(database, 31)
    assert (await clean(one))["message"] == 1
    assert await tried(one, again) == TOO_LARGE
    assert len(again.kept) == 1
