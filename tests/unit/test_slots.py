"""Who may hold a connection, and that a cancelled waiter never takes a place along."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools import room
from pools.room import Room
from pools.slots import Slots
from tests.support.eventually import eventually


async def turns(number: int = 3) -> None:
    """Let every task that can run do so."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_those_who_wait_are_served_in_the_order_of_asking() -> None:
    slots = Slots(1)
    served: list[int] = []

    async def ask(number: int) -> None:
        assert await slots.take()
        served.append(number)
        slots.give()

    assert slots.try_take()
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask(number))
            await turns(1)
        assert slots.waiting == 5
        slots.give()
    assert served == [0, 1, 2, 3, 4]
    assert (slots.taken, slots.waiting) == (0, 0)


async def test_nobody_overtakes_those_who_wait() -> None:
    slots = Slots(1)
    assert slots.try_take()
    waiter = asyncio.create_task(slots.take())
    await turns()
    slots.give()
    assert not slots.try_take()
    assert await waiter


async def test_one_who_comes_back_empty_handed_is_first() -> None:
    slots = Slots(1)
    assert slots.try_take()
    later = asyncio.create_task(slots.take())
    await turns()
    back = asyncio.create_task(slots.take(first=True))
    await turns()
    slots.give()
    assert await back
    assert not later.done()
    slots.give()
    assert await later


async def test_a_waiter_cancelled_in_the_moment_it_is_served_hands_its_slot_on() -> None:
    slots = Slots(1)
    assert slots.try_take()
    waiters = [asyncio.create_task(slots.take()) for _ in range(2)]
    await turns()
    slots.give()
    waiters[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiters[0]
    assert await waiters[1]
    assert (slots.taken, slots.waiting) == (1, 0)


async def test_a_waiter_cancelled_before_it_is_served_leaves_the_queue() -> None:
    slots = Slots(1)
    assert slots.try_take()
    waiters = [asyncio.create_task(slots.take()) for _ in range(2)]
    await turns()
    waiters[0].cancel()
    slots.give()  # before the cancelled task has run
    assert await waiters[1]
    with pytest.raises(asyncio.CancelledError):
        await waiters[0]
    assert (slots.taken, slots.waiting) == (1, 0)


async def test_closing_tells_those_who_wait_and_serves_nobody_any_more() -> None:
    slots = Slots(1)
    assert slots.try_take()
    waiter = asyncio.create_task(slots.take())
    await turns()
    slots.close()
    assert not await waiter
    slots.give()
    assert not slots.try_take()
    assert not await slots.take()
    assert slots.taken == 0


async def test_a_limit_below_what_is_taken_serves_nobody_until_enough_came_back() -> None:
    slots = Slots(3)
    for _ in range(3):
        assert slots.try_take()
    slots.move_limit(1)
    waiter = asyncio.create_task(slots.take())
    for _ in range(2):
        slots.give()
        await turns()
        assert not waiter.done()
    slots.give()
    assert await waiter


async def test_a_limit_that_rises_serves_those_who_wait() -> None:
    slots = Slots(1)
    assert slots.try_take()
    waiters = [asyncio.create_task(slots.take()) for _ in range(3)]
    await turns()
    slots.move_limit(3)
    await turns()
    assert [waiter.done() for waiter in waiters] == [True, True, False]
    waiters[2].cancel()
    with suppress(asyncio.CancelledError):
        await waiters[2]


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "first", "give", "cancel", "turn", "limit"]), st.integers(0, 7)), max_size=60
)


@given(STEPS)
def test_whatever_happens_no_slot_is_lost_and_none_is_served_beyond_the_limit(steps: list[tuple[str, int]]) -> None:
    async def play() -> None:
        slots, tasks, highest, given_back = Slots(2), list[asyncio.Task[bool]](), 2, 0
        for step, number in steps:
            match step:
                case "take" | "first":
                    tasks.append(asyncio.create_task(slots.take(first=step == "first")))
                case "give":
                    if served(tasks) > given_back:
                        slots.give()
                        given_back += 1
                case "cancel" if tasks:
                    tasks[number % len(tasks)].cancel()
                case "turn":
                    await turns(1)
                case "limit":
                    slots.move_limit(number % 4)
                    highest = max(highest, number % 4)
            assert 0 <= slots.taken <= highest
        slots.move_limit(2)
        await turns()
        assert slots.taken == served(tasks) - given_back
        assert slots.waiting == sum(not task.done() for task in tasks)
        while slots.taken:
            slots.give()
            given_back += 1
            await turns()
        assert all(task.done() for task in tasks)

    asyncio.run(play())


def served(tasks: list[asyncio.Task[bool]]) -> int:
    return sum(task.done() and not task.cancelled() for task in tasks)


REFUSAL = asyncpg.TooManyConnectionsError("too many connections for role")


async def test_a_refused_connection_makes_the_pool_as_large_as_what_is_open() -> None:
    slots = Slots(9)
    crowded = Room(slots, 9)
    assert crowded.refused(REFUSAL, others=2)
    assert (slots.limit, crowded.refusals, crowded.refusal) == (2, 1, REFUSAL)
    assert crowded.refused(REFUSAL, others=4)
    assert slots.limit == 2
    crowded.close()


async def test_a_pool_that_has_nothing_open_has_nothing_to_wait_for() -> None:
    slots = Slots(9)
    crowded = Room(slots, 9)
    assert not crowded.refused(REFUSAL, others=0)
    assert slots.limit == 1
    crowded.close()


async def test_one_more_is_tried_from_time_to_time_until_the_size_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_ONE_MORE_EACH_S", 0.001)
    slots = Slots(4)
    crowded = Room(slots, 4)
    crowded.refused(REFUSAL, others=1)
    await eventually(lambda: slots.limit == 4)
    assert crowded.refusal is None


async def test_a_connection_that_is_opened_doubles_what_is_allowed() -> None:
    slots = Slots(9)
    crowded = Room(slots, 9)
    crowded.refused(REFUSAL, others=2)
    for limit in (4, 8, 9, 9):
        crowded.opened()
        assert slots.limit == limit
    crowded.close()
