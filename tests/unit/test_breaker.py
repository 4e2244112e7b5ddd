"""The breaker: nothing starts while it is open, its pauses grow and differ, and what it held too long is given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from consumers import breaker as module
from consumers.breaker import Breaker
from tests.support.eventually import eventually

BRIEF_S = 0.01


@dataclass
class Scene:
    """A breaker that runs, with a probe and a broker of the test's own."""

    blocked: str | None = None
    probes: int = 0
    given_back: int = 0
    taken_again: int = 0
    passed: list[str] = field(default_factory=list)
    breaker: Breaker = field(init=False)

    async def probe(self) -> str | None:
        self.probes += 1
        return self.blocked

    async def give_back(self) -> None:
        self.given_back += 1

    def take_again(self) -> None:
        self.taken_again += 1

    async def lane(self, name: str, attempt: Callable[[], object] = lambda: None) -> bool:
        may_start = await self.breaker.closed()
        if may_start:
            self.passed.append(name)
            attempt()
        return may_start


@asynccontextmanager
async def scene(*, hold_s: float = 60.0, wait_s: float = BRIEF_S) -> AsyncIterator[Scene]:
    made = Scene()
    made.breaker = Breaker(
        "work",
        made.probe,
        first_wait_s=wait_s,
        longest_wait_s=wait_s,
        hold_s=hold_s,
        give_back=made.give_back,
        take_again=made.take_again,
    )
    running = asyncio.create_task(made.breaker.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_nothing_starts_while_it_is_open_and_everybody_when_the_probe_has_passed() -> None:
    async with scene() as it:
        it.blocked = "the database server is read-only"
        it.breaker.open("ReadOnlySQLTransactionError (25006)")
        lanes = [asyncio.create_task(it.lane(name)) for name in "abc"]
        await eventually(lambda: it.breaker.reason == it.blocked, what="a probe that names what is in the way")
        assert it.breaker.is_open
        assert it.passed == []
        it.blocked = None
        assert await asyncio.gather(*lanes) == [True, True, True]
        assert not it.breaker.is_open


async def test_a_stop_lets_go_of_everybody_and_nothing_starts() -> None:
    async with scene() as it:
        it.blocked = "gone"
        it.breaker.open("gone")
        waiting = asyncio.create_task(it.lane("a"))
        await asyncio.sleep(0)
        it.breaker.release()
        assert not await waiting
        assert not await it.lane("b"), "one that comes after the stop is not kept either"


async def test_two_breakers_never_probe_in_step() -> None:
    def pauses() -> list[float]:
        made = Breaker(
            "work",
            Scene().probe,
            first_wait_s=1.0,
            longest_wait_s=30.0,
            hold_s=60.0,
            give_back=Scene().give_back,
            take_again=Scene().take_again,
        )
        return [made._pauses.next_s() for _ in range(10)]

    one, other = pauses(), pauses()
    assert all(first != second for first, second in zip(one, other, strict=True))
    assert 0.5 <= one[0] <= 1.0
    assert all(15.0 <= pause <= 30.0 for pause in one[5:]), "jitter stays in proportion at the longest pause too"


async def test_what_is_held_for_too_long_is_given_back_and_taken_again_when_attempts_may_start() -> None:
    async with scene(hold_s=2 * BRIEF_S) as it:
        it.blocked = "gone"
        it.breaker.open("gone")
        waiting = asyncio.create_task(it.lane("a"))
        await eventually(lambda: it.given_back, what="the giving back")
        assert await waiting, "it finds that the broker has its message"
        await eventually(lambda: it.probes > 2, what="further probes")
        assert (it.given_back, it.taken_again) == (1, 0)
        it.blocked = None
        await eventually(lambda: not it.breaker.is_open, what="a closed breaker")
        assert (it.given_back, it.taken_again) == (1, 1)


async def test_a_probe_that_passes_although_attempts_fail_holds_nothing_for_ever() -> None:
    async with scene(hold_s=5 * BRIEF_S) as it:

        async def fails_for_ever() -> None:
            while not it.given_back:
                it.breaker.open("InsufficientPrivilegeError (42501)")
                await it.breaker.closed()

        async with asyncio.timeout(30):
            await fails_for_ever()
        assert it.probes > 1


async def test_a_breaker_that_was_closed_for_long_begins_to_hold_anew() -> None:
    async with scene(hold_s=0.5) as it:
        it.breaker.open("once")
        await eventually(lambda: not it.breaker.is_open, what="a closed breaker")
        it.breaker._closed_at -= module.STABLE_S + 1
        it.breaker._held_since -= 60
        it.breaker.open("again")
        await eventually(lambda: not it.breaker.is_open, what="a closed breaker")
        assert it.given_back == 0


async def test_what_a_handler_reports_lets_one_try_after_each_pause_until_one_meets_nothing() -> None:
    async with scene() as it:
        report = "a handler met httpx.ConnectError"
        it.breaker.open(report, by_handler=True)
        failing = [
            asyncio.create_task(it.lane(name, lambda: it.breaker.open(report, by_handler=True))) for name in "abc"
        ]
        await asyncio.gather(*failing)
        assert it.passed == ["a", "b", "c"]
        assert it.probes >= 3, "two went after one pause"
        it.breaker.open(report, by_handler=True)  # nobody may have been waiting any more
        good = [asyncio.create_task(it.lane(name, it.breaker.served)) for name in "de"]
        assert await asyncio.gather(*good) == [True, True]
        assert not it.breaker.is_open


async def test_only_the_one_that_was_let_through_says_that_all_is_well() -> None:
    async with scene(wait_s=0.2) as it:
        it.breaker.open("a handler met httpx.ConnectError", by_handler=True)
        waiting = asyncio.create_task(it.lane("a", it.breaker.served))
        await asyncio.sleep(0)
        it.breaker.served()  # of an attempt that had started before
        assert it.breaker.is_open
        await waiting
        await eventually(lambda: not it.breaker.is_open, what="a closed breaker")


async def test_a_report_with_nobody_waiting_is_forgotten_after_a_pause() -> None:
    async with scene() as it:
        it.breaker.open("a handler met httpx.ConnectError", by_handler=True)
        await eventually(lambda: not it.breaker.is_open, what="a breaker that closed although no message came")


async def test_a_trial_that_never_reports_keeps_nobody_waiting_for_ever() -> None:
    async with scene() as it:
        it.breaker.open("a handler met httpx.ConnectError", by_handler=True)
        never = asyncio.Event()

        async def hangs() -> None:
            assert await it.breaker.closed()
            it.passed.append("hangs")
            await never.wait()

        hanging = asyncio.create_task(hangs())
        await asyncio.sleep(0)
        assert await asyncio.create_task(it.lane("next"))
        assert it.passed == ["hangs", "next"]
        hanging.cancel()


async def test_what_was_given_back_during_a_report_is_consumed_again_and_tried_one_by_one() -> None:
    async with scene(hold_s=5 * BRIEF_S) as it:
        report = "a handler met httpx.ConnectError"

        async def keeps_failing() -> None:
            while it.taken_again < 2:
                it.breaker.open(report, by_handler=True)
                await it.breaker.closed()

        it.breaker.open(report, by_handler=True)
        async with asyncio.timeout(30):
            await asyncio.gather(*(keeps_failing() for _ in range(3)))
        assert it.given_back >= 2
        await eventually(lambda: not it.breaker.is_open, what="a breaker that closed when nobody failed any more")


async def test_whether_a_breaker_was_open_a_moment_ago_is_known() -> None:
    async with scene() as it:
        assert not it.breaker.was_open(3600.0)
        it.breaker.open("down")
        assert it.breaker.was_open(0.0)
        await eventually(lambda: not it.breaker.is_open, what="a breaker that closed")
        assert it.breaker.was_open(3600.0)
        assert not it.breaker.was_open(0.0)
