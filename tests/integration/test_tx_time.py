"""Handlers whose time is up, and handlers that a shutdown gives up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from inbox import Attempt, Policy, Tx, TxDead, running
from inbox.outcomes import Processed, Stopped, Waiting
from servers.relay import Direction, Rule
from tests.support.databases import Database
from tests.support.eventually import eventually
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
from tests.support.relay import RelayBefore

BRIEF = Policy(max_attempts=3, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=0.2)


# Time.


async def sleep_in_sql(_: Attempt, tx: Tx) -> None:
    await tx.execute("select pg_sleep(60)")


async def sleep_outside(_: Attempt, tx: Tx) -> None:
    await asyncio.Event().wait()


async def swallow_the_cancellation(_: Attempt, tx: Tx) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def swallow_the_cancellation_of_a_statement(_: Attempt, tx: Tx) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await tx.execute("select pg_sleep(60)")


async def work_on_after_the_cancellation(attempt: Attempt, tx: Tx) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await tx.execute(INSERT, "m-1", attempt.number, "late")


async def sleep_in_a_block(_: Attempt, tx: Tx) -> None:
    async with tx.savepoint():
        await tx.execute("select pg_sleep(60)")


@HOT_AND_COUNTED
@pytest.mark.parametrize(
    "step",
    [
        sleep_in_sql,
        sleep_outside,
        swallow_the_cancellation,
        swallow_the_cancellation_of_a_statement,
        work_on_after_the_cancellation,
        sleep_in_a_block,
    ],
)
async def test_a_handler_whose_time_is_up_is_recorded_in_place_however_it_ends(
    process: StartProcess, database: Database, step: Any, redelivered: bool
) -> None:
    one = await process()
    outcome = await one.attempt(message(), Handler(step), BRIEF, redelivered=redelivered)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="TimeoutError")
    await assert_charged(database, "TimeoutError", outcome="timed_out")
    assert "more than 0.2 s" in await database.fetchval("select error_text from inbox.attempt")
    assert one.pool.statistics().terminated == 0
    await done_next_time(one)


@HOT_AND_COUNTED
async def test_a_handler_that_cannot_be_cancelled_is_abandoned_and_recorded_on_another_session(
    process: StartProcess, database: Database, monkeypatch: pytest.MonkeyPatch, redelivered: bool
) -> None:
    monkeypatch.setattr(running, "CANCEL_WAIT_S", 0.1)
    one, over, answers = await process(), asyncio.Event(), list[BaseException]()

    async def cling(_: Attempt, tx: Tx) -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()
        try:
            await tx.execute(INSERT, "m-1", 1, "late")
        except TxDead as error:
            answers.append(error)

    outcome = await one.attempt(message(), Handler(cling), BRIEF, redelivered=redelivered)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="TimeoutError")
    await assert_charged(database, "TimeoutError", outcome="timed_out")
    assert one.pool.statistics().terminated == 1
    assert one.inbox.runner.abandoned == 1
    await done_next_time(one)
    over.set()
    await eventually(lambda: one.inbox.runner.abandoned == 0, what="the end of an abandoned handler")
    assert [type(answer) for answer in answers] == [TxDead]
    assert await standing(database, message()) == PROCESSED


async def test_a_handler_that_blocks_in_a_thread_is_not_waited_for_and_its_thread_cannot_write_any_more(
    process: StartProcess, database: Database
) -> None:
    one, go = await process(), threading.Event()
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def block(_: Attempt, tx: Tx) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            go.wait(30)
            writing = asyncio.run_coroutine_threadsafe(tx.execute(INSERT, "m-1", 1, "late"), loop)
            loop.call_soon_threadsafe(ended.set_result, writing.exception(10))

        await asyncio.to_thread(work)

    outcome = await one.attempt(message(), Handler(block), BRIEF)
    assert outcome == Waiting(1, 0.0, charged=True, error_class="TimeoutError")
    await assert_charged(database, "TimeoutError", outcome="timed_out")
    go.set()
    assert type(await ended) is TxDead
    assert (await standing(database, message())).effects == 0


async def test_a_handler_that_was_done_before_anybody_saw_that_its_time_was_up_is_done(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def block_the_loop(_: Attempt, tx: Tx) -> None:
        time.sleep(0.3)  # noqa: ASYNC251  # a handler that computes

    assert await one.attempt(message(), Handler(block_the_loop), BRIEF) == Processed(1)
    assert await standing(database, message()) == PROCESSED


# Stopping.


@HOT_AND_COUNTED
@pytest.mark.parametrize("direction", list(Direction))
async def test_giving_up_while_commit_is_under_way_does_not_undo_it(
    process: StartProcess, database: Database, relay_before: RelayBefore, direction: Direction, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def arm(_: Attempt, tx: Tx) -> None:
        committing.append(relay.hold_on(b"COMMIT", direction))

    committing: list[Rule] = []
    handler = Handler(arm)
    attempt = asyncio.create_task(one.attempt(message(), handler, redelivered=redelivered))
    await eventually(lambda: committing and committing[0].reached.is_set(), what="COMMIT on its way")
    one.inbox.runner.give_up()
    committing[0].release()
    assert await attempt == Processed(1)
    assert await standing(database, message()) == PROCESSED


async def test_giving_up_at_the_moment_when_a_handler_returns_does_not_undo_it(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def last_step(_: Attempt, tx: Tx) -> None:
        # Runs when this task is done and before anybody has been told.
        asyncio.get_running_loop().call_soon(one.inbox.runner.give_up)

    assert await one.attempt(message(), Handler(last_step)) == Processed(1)
    assert await standing(database, message()) == PROCESSED


@HOT_AND_COUNTED
async def test_giving_up_a_handler_rolls_back_and_charges_nobody(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, started = await process(), asyncio.Event()

    async def start(_: Attempt, tx: Tx) -> None:
        started.set()
        await tx.execute("select pg_sleep(60)")

    attempt = asyncio.create_task(one.attempt(message(), Handler(start), redelivered=redelivered))
    await started.wait()
    one.inbox.runner.give_up()
    assert await attempt == Stopped()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    assert await one.attempt(message(), Handler(), redelivered=True) == Stopped()
    assert (await standing(database, message())).effects == 0


@HOT_AND_COUNTED
async def test_a_lane_that_is_cancelled_during_commit_sees_it_through(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))
    committing: list[Rule] = []

    async def arm(_: Attempt, tx: Tx) -> None:
        committing.append(relay.hold_on(b"COMMIT", Direction.TO_SERVER))

    attempt = asyncio.create_task(one.attempt(message(), Handler(arm), redelivered=redelivered))
    await eventually(lambda: committing and committing[0].reached.is_set(), what="COMMIT on its way")
    attempt.cancel()
    await asyncio.sleep(0)
    committing[0].release()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert await standing(database, message()) == PROCESSED
    await one.pay()


@HOT_AND_COUNTED
async def test_a_lane_that_is_cancelled_while_its_handler_runs_leaves_nothing_behind(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, started = await process(), asyncio.Event()

    async def start(_: Attempt, tx: Tx) -> None:
        started.set()
        await asyncio.Event().wait()

    attempt = asyncio.create_task(one.attempt(message(), Handler(start), redelivered=redelivered))
    await started.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await one.pay()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    assert one.pool.statistics().in_use == 0
