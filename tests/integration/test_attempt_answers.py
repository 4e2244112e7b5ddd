"""Whatever a handler raises and whatever a message holds, the attempt is on record."""

from __future__ import annotations

import asyncio

import pytest

from inbox import Attempt, Reject, Retry, Tx
from inbox.outcomes import (
    Ended,
    Processed,
    Waiting,
)
from inbox.states import State
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


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Abrupt(BaseException):
    """What some frameworks raise to get past `except Exception`."""


class ForeignReject(Reject):
    def __init__(self, order: int) -> None:
        self.order = order


class ForeignRetry(Retry):
    def __init__(self, order: int) -> None:
        self.order = order


@HOT_AND_COUNTED
@pytest.mark.parametrize(
    "error",
    [
        Mute(),
        SystemExit(3),
        Abrupt("out"),
        BaseExceptionGroup("many", [Abrupt("out"), ValueError("no")]),
        asyncio.CancelledError("from somewhere inside"),
        StopAsyncIteration(),
        TimeoutError(),
        ConnectionResetError("of a web service"),
        ForeignRetry(1),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_is_a_charged_failure_and_the_process_lives(
    process: StartProcess, database: Database, error: BaseException, redelivered: bool
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(error), redelivered=redelivered)
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("failed", True),))
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(2)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("answer", [ForeignReject(1), Reject(17), Reject(None)], ids=["subclass", "number", "none"])  # type: ignore[arg-type]
async def test_a_rejection_without_a_proper_reason_is_a_rejection(
    process: StartProcess, database: Database, answer: Reject
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(answer))
    assert isinstance(outcome, Ended)
    assert outcome.state is State.REJECTED
    assert (await standing(database, message())).state == "rejected"


async def test_a_wait_beyond_all_measure_is_a_failure_that_is_recorded(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def wait_for_ever(_: Attempt, tx: Tx) -> None:
        raise Retry(after=1e15)

    outcome = await one.attempt(message(), Handler(wait_for_ever))
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert (await standing(database, message())).attempts == (("failed", True),)


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 10_000, "\U0001f4e6" * 255, ""])
@pytest.mark.parametrize("field", ["source", "message_id", "type", "exchange", "routing_key", "traceparent"])
async def test_a_message_with_any_text_in_any_field_can_be_recorded(
    process: StartProcess, database: Database, field: str, text: str
) -> None:
    one = await process()
    odd = message(**{"key": message().key, field: text})
    for redelivered in (False, True):
        outcome = await one.attempt(odd, Handler(ValueError(text)), redelivered=redelivered)
        assert isinstance(outcome, Waiting), outcome
        assert outcome.charged
    stored = await database.fetchval(f"select {field} from inbox.message")
    assert len(stored) <= 2_000
    assert await one.attempt(odd, Handler(), redelivered=True) == Processed(3)


@HOT_AND_COUNTED
@pytest.mark.parametrize("size", [0, 5_000_000])
async def test_a_body_of_any_size_is_kept_as_it_came(
    process: StartProcess, database: Database, size: int, redelivered: bool
) -> None:
    one = await process()
    body = bytes(number % 251 for number in range(1000)) * (size // 1000)
    large = message(body=body)
    assert isinstance(await one.attempt(large, Handler(ValueError("no")), redelivered=redelivered), Waiting)
    assert await database.fetchval("select body from inbox.message") == body
    assert await one.attempt(large, Handler(), redelivered=True) == Processed(2)
