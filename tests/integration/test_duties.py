"""Duties: one process of a service does what is to be done for all, and another one takes over."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from inbox.duties import Duty
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import Process, StartProcess


def duty(process: Process, *, service: str = "test", name: str = "sweep", every_s: float = 0.01) -> Duty:
    return Duty(pool=process.housekeeping, service=service, name=name, member_id=process.member.id, every_s=every_s)


async def test_a_duty_is_held_by_one_process_and_renewed_by_it(process: StartProcess) -> None:
    one, other = duty(await process("one")), duty(await process("other"))
    assert [await one.hold(), await other.hold(), await one.hold()] == [True, False, True]


async def test_each_service_has_its_own_duties_and_they_are_held_one_by_one(process: StartProcess) -> None:
    one, other = await process("one"), await process("other")
    assert await duty(one).hold()
    assert await duty(other, name="clean").hold()
    assert await duty(other, service="shop").hold()


async def test_a_duty_whose_holder_has_vanished_is_taken_when_its_time_is_up(
    process: StartProcess, database: Database
) -> None:
    one, other = duty(await process("one")), duty(await process("other"))
    assert await one.hold()
    await database.execute("update inbox.duty set held_until = inbox.clock()")
    assert await other.hold()
    assert not await one.hold()


@pytest.mark.parametrize("end", ["heartbeat_at = heartbeat_at - 2 * expiry", "stopped_at = inbox.clock()"])
async def test_a_duty_whose_holder_has_no_heartbeat_any_more_is_taken_before_its_time(
    process: StartProcess, database: Database, end: str
) -> None:
    gone, other = await process("gone"), duty(await process("other"))
    assert await duty(gone).hold()
    assert not await other.hold()
    await database.execute(f"update inbox.member set {end} where id = $1", gone.member.id)
    assert await other.hold()


async def test_a_process_that_stops_lets_another_one_take_over_at_once(process: StartProcess) -> None:
    one, other = duty(await process("one")), duty(await process("other"))
    rounds = 0

    async def count() -> bool:
        nonlocal rounds
        rounds += 1
        return False

    running = asyncio.create_task(one.run(count))
    await eventually(lambda: rounds > 1, what="two rounds")
    assert not await other.hold()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert await other.hold()


async def test_a_round_with_more_to_do_is_followed_by_the_next_at_once(process: StartProcess) -> None:
    left = [True, True, False]
    done = asyncio.Event()

    async def work() -> bool:
        more = left.pop(0)
        if not more:
            done.set()
        return more

    running = asyncio.create_task(duty(await process(), every_s=3600.0).run(work))
    await asyncio.wait_for(done.wait(), 10.0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("fault", [ConnectionResetError(), TimeoutError()], ids=lambda fault: type(fault).__name__)
async def test_a_round_without_a_server_is_not_the_last(process: StartProcess, fault: Exception) -> None:
    rounds = 0

    async def work() -> bool:
        nonlocal rounds
        rounds += 1
        raise fault

    running = asyncio.create_task(duty(await process()).run(work))
    await eventually(lambda: rounds > 2, what="rounds after one that failed")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
