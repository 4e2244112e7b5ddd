"""Whose connections count together."""

from __future__ import annotations

import asyncio
import gc

from pools import nesting, work
from tests.support.eventually import eventually


async def in_a_task() -> nesting.Record:
    return nesting.record()


async def test_a_task_that_comes_out_of_a_piece_of_work_counts_with_it() -> None:
    with work():
        mine = nesting.record()
        assert await asyncio.create_task(in_a_task()) is mine
        assert await asyncio.gather(in_a_task(), in_a_task()) == [mine, mine]


async def test_each_piece_of_work_begins_with_nothing_held() -> None:
    with work():
        outer = nesting.record()
        nesting.add(outer, "pool")
        with work():
            assert nesting.record() == {}
        assert nesting.record() is outer


async def test_outside_of_any_work_each_task_counts_for_itself() -> None:
    mine = nesting.record()
    assert nesting.record() is mine
    first, second = await asyncio.gather(in_a_task(), in_a_task())
    assert first is not mine
    assert first is not second


async def test_a_record_forgets_what_is_given_back_and_ends_with_its_task() -> None:
    held = nesting.record()
    nesting.add(held, "pool")
    nesting.add(held, "pool")
    nesting.remove(held, "pool")
    assert held == {"pool": 1}
    nesting.remove(held, "pool")
    assert held == {}
    kept = len(nesting._of_tasks)
    await asyncio.gather(*(in_a_task() for _ in range(10)))

    def forgotten() -> bool:
        gc.collect()
        return len(nesting._of_tasks) == kept

    await eventually(forgotten)
