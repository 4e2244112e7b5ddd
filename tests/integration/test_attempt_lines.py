"""Sessions that are lost at each step of an attempt, and outcomes that nobody knows."""

from __future__ import annotations

import asyncio

import pytest

from inbox import Attempt, Policy, Tx, claiming
from inbox.outcomes import (
    Duplicate,
    Processed,
    Unavailable,
    Unknown,
)
from servers.relay import Direction
from tests.support.databases import Database
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    message,
    processed_in_the_end,
    standing,
)
from tests.support.relay import RelayBefore


async def test_a_first_delivery_whose_session_dies_leaves_nothing_and_charges_nobody(
    process: StartProcess, database: Database
) -> None:
    one = await process()

    async def lose(_: Attempt, tx: Tx) -> None:
        await one.end_sessions()

    for _ in range(2):
        assert isinstance(await one.attempt(message(), Handler(lose)), Unknown)
    assert await standing(database, message()) == Standing(0, 0)
    assert one.debts.count == 0
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(1)


async def test_a_session_that_died_idle_costs_a_claim_no_more_than_another_session(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url), lanes=1, headroom=0)
    for number, redelivered in enumerate((False, True)):
        assert await one.attempt(message(f"before {number}"), Handler()) == Processed(1)
        # Cut when the claim is on its way: this end cannot have known before.
        cut = relay.cut_on(b"inbox.hold" if redelivered else b"inbox.lock", Direction.TO_SERVER)
        handler = Handler(message_id=f"after {number}")
        assert await one.attempt(message(f"after {number}"), handler, redelivered=redelivered) == Processed(1)
        assert cut.reached.is_set()
        assert await standing(database, message(f"after {number}")) == PROCESSED


@HOT_AND_COUNTED
async def test_a_commit_that_the_server_never_saw_is_unknown_and_the_redelivery_finds_nothing_done(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def arm(_: Attempt, tx: Tx) -> None:
        relay.cut_on(b"RELEASE SAVEPOINT", Direction.TO_SERVER)

    assert isinstance(await one.attempt(message(), Handler(arm), redelivered=redelivered), Unknown)
    await one.pay()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if redelivered else Standing(0, 0))
    assert isinstance(await one.attempt(message(), Handler(), redelivered=True), Processed)
    assert await standing(database, message()) == PROCESSED


@HOT_AND_COUNTED
async def test_a_commit_whose_answer_was_lost_is_unknown_and_the_redelivery_finds_it_done(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one, handler = await process(url=relay.url(database.url)), Handler()

    async def arm(_: Attempt, tx: Tx) -> None:
        relay.cut_on(b"COMMIT", Direction.TO_CLIENT)

    assert isinstance(await one.attempt(message(), Handler(arm), redelivered=redelivered), Unknown)
    await one.pay()
    assert await standing(database, message()) == PROCESSED
    assert await one.attempt(message(), handler, redelivered=True) == Duplicate()
    assert handler.calls == []


@HOT_AND_COUNTED
@pytest.mark.parametrize("answered", [False, True], ids=["never seen", "answer lost"])
async def test_a_failure_whose_record_is_unknown_is_charged_once_or_not_at_all(
    process: StartProcess, database: Database, relay_before: RelayBefore, answered: bool, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))

    async def arm(_: Attempt, tx: Tx) -> None:
        relay.cut_on(b"COMMIT", Direction.TO_CLIENT if answered else Direction.TO_SERVER)
        raise ValueError("no")

    assert isinstance(await one.attempt(message(), Handler(arm), redelivered=redelivered), Unknown)
    await one.pay()
    found = await standing(database, message())
    if answered:
        assert found == Standing(0, 0, "waiting", (("failed", True),))
    elif redelivered:
        assert found == Standing(0, 0, "waiting", (("aborted", False),))
    else:
        assert found == Standing(0, 0)
    assert isinstance(await one.attempt(message(), Handler(), redelivered=True), Processed)
    assert await standing(database, message()) == PROCESSED


@pytest.mark.parametrize("answered", [False, True], ids=["never seen", "answer lost"])
async def test_a_counted_start_whose_answer_is_unknown_is_owed_and_charges_nobody(
    process: StartProcess, database: Database, relay_before: RelayBefore, answered: bool
) -> None:
    relay = await relay_before(database.url)
    one, handler = await process(url=relay.url(database.url)), Handler()
    # The column of the verdict's row, which only its description names; or the call's own text.
    if answered:
        relay.cut_on(b"attempting", Direction.TO_CLIENT)
    else:
        relay.cut_on(b"inbox.start_attempt", Direction.TO_SERVER)
    assert isinstance(await one.attempt(message(), handler, redelivered=True), Unavailable)
    assert handler.calls == []
    await one.pay()
    found = await standing(database, message())
    assert found == (Standing(0, 0, "waiting", (("aborted", False),)) if answered else Standing(0, 0))
    assert isinstance(await one.attempt(message(), handler, redelivered=True), Processed)
    assert await standing(database, message()) == PROCESSED


async def test_a_counted_attempt_whose_session_dies_before_its_handler_is_called_is_owed(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(database.url)
    one, handler = await process(url=relay.url(database.url)), Handler()
    relay.cut_on(b"BEGIN ISOLATION", Direction.TO_SERVER)
    assert isinstance(await one.attempt(message(), handler, redelivered=True), Unknown)
    assert handler.calls == []
    assert one.debts.count == 1
    await one.pay()
    assert await standing(database, message()) == Standing(0, 0, "waiting", (("aborted", False),))
    assert await one.attempt(message(), handler, redelivered=True) == Processed(2)


async def test_once_a_commit_is_confirmed_nothing_can_turn_it_into_a_failure(
    process: StartProcess, database: Database, relay_before: RelayBefore
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url))
    giving_back = relay.cut_on(b"pg_advisory_unlock(", Direction.TO_SERVER)
    assert await one.attempt(message(), Handler(), redelivered=True) == Processed(1)
    assert giving_back.reached.is_set()
    assert one.pool.statistics().in_use == 0
    assert one.debts.count == 0
    assert await standing(database, message()) == PROCESSED


@HOT_AND_COUNTED
async def test_a_duplicate_whose_session_dies_while_it_leaves_is_a_duplicate(
    process: StartProcess, database: Database, relay_before: RelayBefore, redelivered: bool
) -> None:
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url), lanes=1, headroom=0)
    await one.attempt(message(), Handler())
    leaving = relay.cut_on(b"pg_advisory_unlock(" if redelivered else b"COMMIT\x00", Direction.TO_SERVER)
    assert await one.attempt(message(), Handler(), redelivered=redelivered) == Duplicate()
    assert leaving.reached.is_set()
    assert one.pool.statistics().in_use == 0
    assert await one.attempt(message(), Handler(), redelivered=redelivered) == Duplicate()
    assert await standing(database, message()) == PROCESSED


@HOT_AND_COUNTED
@pytest.mark.parametrize("ending", [None, ValueError("no")], ids=["success", "failure"])
@pytest.mark.parametrize("step", ["claim", "handler", "end"])
async def test_a_line_that_goes_dead_at_any_step_ends_the_attempt_in_bounded_time(
    process: StartProcess,
    database: Database,
    relay_before: RelayBefore,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    ending: BaseException | None,
    redelivered: bool,
) -> None:
    for name in ("STATEMENT_TIMEOUT_S", "COMMIT_TIMEOUT_S"):
        monkeypatch.setattr(claiming, name, 0.3)
    relay = await relay_before(database.url)
    one = await process(url=relay.url(database.url), connect_timeout_s=0.3, acquire_timeout_s=0.3)
    await one.attempt(message("warm"), Handler(message_id="warm"))

    async def go_dead(_: Attempt, tx: Tx) -> None:
        if step != "claim":
            relay.half_open()
        if step == "handler":
            await tx.execute("select 1")
        if ending is not None:
            raise ending

    if step == "claim":
        relay.half_open()
    brief = Policy(max_attempts=3, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=0.3)
    async with asyncio.timeout(10):
        outcome = await one.attempt(message(), Handler(go_dead), brief, redelivered=redelivered)
    assert isinstance(outcome, (Unknown, Unavailable)), outcome
    assert one.pool.statistics().in_use == 0
    relay.cut()
    relay.heal()
    await one.pay()
    assert all(not charged for _, charged in (await standing(database, message())).attempts)
    settled = await processed_in_the_end(one, message())
    assert isinstance(settled, (Processed, Duplicate)), settled
    assert await standing(database, message()) == PROCESSED
