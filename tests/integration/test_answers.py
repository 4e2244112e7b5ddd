"""What handlers raise in odd ways is still taken for what it says, and never for a fault of the database."""

from __future__ import annotations

import asyncio

import pytest

from inbox import Attempt, Policy, Reject, Retry, Tx
from inbox.outcomes import Ended, Waiting
from inbox.states import State
from tests.support.databases import Database
from tests.support.inboxes import Handler, StartProcess, message

_PATIENT = Policy(max_attempts=3, pacing_s=(5.0,), handler_timeout_s=10.0)


class Panic(BaseException):
    """As foreign code raises it: no Exception."""


async def _from_a_group(error: BaseException) -> None:
    async def fails() -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())


@pytest.mark.parametrize("redelivered", [False, True], ids=["hot", "counted"])
@pytest.mark.parametrize("error", [Panic("gone"), KeyboardInterrupt(), GeneratorExit(), SystemExit(3)], ids=repr)
async def test_an_error_that_is_no_exception_is_the_handlers_failure(
    process: StartProcess, database: Database, error: BaseException, redelivered: bool
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(error), _PATIENT, redelivered=redelivered)
    assert isinstance(outcome, Waiting)
    assert outcome.charged
    assert type(error).__name__ in await database.fetchval("select error_class from inbox.attempt")


async def test_a_rejection_inside_a_task_group_is_a_rejection(process: StartProcess, database: Database) -> None:
    async def rejects(_: Attempt, tx: Tx) -> None:
        await _from_a_group(Reject("no such currency"))

    outcome = await (await process()).attempt(message(), Handler(rejects), _PATIENT, redelivered=False)
    assert isinstance(outcome, Ended)
    assert outcome.state is State.REJECTED
    assert await database.fetchval("select reason from inbox.message") == "no such currency"


async def test_a_retry_inside_a_task_group_waits_for_as_long_as_it_says(process: StartProcess) -> None:
    async def retries(_: Attempt, tx: Tx) -> None:
        await _from_a_group(Retry(after=60))

    outcome = await (await process()).attempt(message(), Handler(retries), _PATIENT, redelivered=False)
    assert isinstance(outcome, Waiting)
    assert outcome.delay_s == 60


async def test_a_group_of_errors_is_recorded_with_what_each_of_them_says(
    process: StartProcess, database: Database
) -> None:
    several = ExceptionGroup("two things", [ValueError("no cents"), KeyError("customer")])
    await (await process()).attempt(message(), Handler(several), _PATIENT, redelivered=False)
    said = await database.fetchval("select error_text from inbox.attempt")
    assert "ValueError: no cents" in said
    assert "KeyError: 'customer'" in said


async def test_a_message_that_ends_says_by_which_error(process: StartProcess) -> None:
    once = Policy(max_attempts=1, handler_timeout_s=10.0)
    outcome = await (await process()).attempt(message(), Handler(ValueError("no")), once, redelivered=False)
    assert outcome == Ended(State.EXHAUSTED, 1, "attempts", "ValueError")
