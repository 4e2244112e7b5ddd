"""A lane: every delivery ends settled, and nothing is acked that is neither committed nor parked."""

from __future__ import annotations

import asyncio

import pytest

from consumers import lane
from consumers.errors import HeadersTooLarge, PublishUnconfirmed
from inbox import Outcome, State
from inbox.outcomes import (
    Absorbed,
    Contended,
    Duplicate,
    Early,
    Ended,
    Full,
    Processed,
    Stopped,
    Unavailable,
    Undecided,
    Unkept,
    Unknown,
    Waiting,
)
from tests.support.eventually import eventually
from tests.support.lanes import Bench

FATES: list[tuple[Outcome, str]] = [
    (Processed(1), "ack"),
    (Duplicate(), "ack"),
    (Absorbed(State.REJECTED), "ack"),
    (Ended(State.EXHAUSTED, 5, "attempts"), "ack"),
    (Ended(State.REJECTED, 1, "no"), "ack"),
    (Contended(), "park: contention step"),
    (Undecided(), "park: contention step"),
    (Early(3.5), "park: 3.5 s"),
    (Full(), "park: inf s"),
    (Unkept("no queue is bound for it"), "park: inf s"),
    (Waiting(1, 5.0, charged=True, error_class="ValueError"), "park: 5 s"),
    (Waiting(1, 0.0, charged=True, error_class="ValueError"), "requeue"),
    (Waiting(1, 0.0, charged=False, error_class="aborted"), "requeue"),
    (Unknown("ConnectionDoesNotExistError"), "requeue"),
    (Stopped(), "requeue"),
]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "_BUG_PAUSE_S", 0.0)
    monkeypatch.setattr(lane, "_UNPARKABLE_PAUSE_S", 0.0)


@pytest.mark.parametrize(("outcome", "fate"), FATES, ids=lambda value: type(value).__name__)
async def test_each_outcome_has_its_settlement(outcome: Outcome, fate: str) -> None:
    assert await Bench(outcome).run() == fate


async def test_an_unavailable_database_keeps_the_delivery_until_it_is_back() -> None:
    bench = Bench(Unavailable("ConnectionRefusedError", started=False), Processed(1))
    assert await bench.run() == "ack"
    assert bench.breaker.reasons == ["ConnectionRefusedError"]
    assert bench.inbox.redelivered == [False, False]


async def test_what_had_started_before_the_outage_is_counted_when_it_comes_again() -> None:
    bench = Bench(Unavailable("DiskFullError (53100)", started=True), Processed(2))
    assert await bench.run() == "ack"
    assert bench.inbox.redelivered == [False, True]


@pytest.mark.parametrize(
    ("outcome", "fate"),
    [
        (Waiting(1, 5.0, charged=False, error_class="httpx.ConnectError", pauses=True), "park: 5 s"),
        (Ended(State.EXHAUSTED, 20, "aborts", "httpx.ConnectError", pauses=True), "ack"),
    ],
    ids=["waits", "has ended"],
)
async def test_what_a_handler_met_in_every_messages_way_pauses_the_consumer_and_settles_the_message(
    outcome: Outcome, fate: str
) -> None:
    bench = Bench(outcome)
    assert await bench.run() == fate
    assert bench.breaker.reasons == ["reported: a handler met httpx.ConnectError"]
    assert bench.breaker.attempts_served == 0


@pytest.mark.parametrize(
    ("outcome", "served"),
    [
        (Processed(1), 1),
        (Waiting(1, 5.0, charged=True, error_class="ValueError"), 1),
        (Ended(State.EXHAUSTED, 5, "attempts", "ValueError"), 1),
        (Ended(State.EXHAUSTED, 5, "attempts"), 0),
        (Ended(State.REJECTED, 1, "no"), 0),
        (Waiting(1, 5.0, charged=False, error_class="asyncpg.exceptions.DeadlockDetectedError"), 0),
        (Duplicate(), 0),
        (Contended(), 0),
        (Early(3.5), 0),
        (Stopped(), 0),
    ],
)
async def test_only_an_attempt_that_ran_to_its_end_says_that_nothing_is_in_the_way(
    outcome: Outcome, served: int
) -> None:
    bench = Bench(outcome)
    await bench.run()
    assert bench.breaker.attempts_served == served


async def test_a_delivery_whose_process_stops_during_an_outage_is_given_back() -> None:
    bench = Bench(Unavailable("ConnectionRefusedError", started=False), stays_open=True)
    assert await bench.run() == "requeue"


async def test_a_delivery_whose_channel_is_gone_is_not_started() -> None:
    bench = Bench(Processed(1), void=True)
    assert await bench.run() == "kept"
    assert bench.inbox.redelivered == []


async def test_a_park_that_is_not_confirmed_is_tried_again_and_never_acked_before() -> None:
    bench = Bench(Contended())
    bench.parking.answers = [unconfirmed(), None]
    assert await bench.run() == "park: contention step"
    assert len(bench.breaker.reasons) == 1


async def test_a_delivery_that_cannot_be_parked_before_the_process_stops_is_given_back() -> None:
    bench = Bench(Contended(), stays_open=True)
    bench.parking.answers = [unconfirmed()]
    assert await bench.run() == "requeue"


async def test_a_message_of_which_no_copy_can_be_made_is_given_back() -> None:
    bench = Bench(Contended())
    bench.parking.answers = [HeadersTooLarge(size=200_000, limit=131_064)]
    assert await bench.run() == "requeue"


async def test_a_parked_copy_says_that_an_attempt_may_have_started() -> None:
    bench = Bench(Contended(), redelivered=True)
    await bench.run()
    assert bench.parking.parked == [(None, True)]


async def test_a_fault_of_the_product_gives_the_delivery_back_and_the_lane_goes_on() -> None:
    bench = Bench(RuntimeError("a bug"))
    assert await bench.run() == "requeue"  # it read on until the sign of the end
    assert not bench.lane.busy


async def test_a_fault_while_parking_gives_the_delivery_back() -> None:
    bench = Bench(Early(1.0))
    bench.parking.answers = [RuntimeError("a bug")]
    assert await bench.run() == "requeue"


async def test_a_cancelled_lane_gives_its_delivery_back() -> None:
    bench = Bench(Processed(1))
    bench.inbox.before = asyncio.Event().wait
    bench.deliveries.put_nowait(bench.delivery())
    running = asyncio.create_task(bench.lane.run())
    await eventually(lambda: bench.inbox.redelivered, what="the attempt being under way")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.fate() == "requeue"


def unconfirmed() -> PublishUnconfirmed:
    return PublishUnconfirmed(exchange="", routing_key="work.park.1s", message_id="m-1", problem="no answer", sent=True)
