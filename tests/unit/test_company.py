"""A suspect runs alone, and whoever is cancelled at the gate takes no place with him."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inbox.company import Company


class Visitor:
    """One attempt at the gate: waits for its turn, stays until it is sent away."""

    def __init__(self, company: Company, *, alone: bool) -> None:
        self.alone = alone
        self.inside = False
        self._leave = asyncio.Event()
        self.task = asyncio.ensure_future(self._visit(company.alone() if alone else company.shared()))

    async def _visit(self, gate: AbstractAsyncContextManager[None]) -> None:
        async with gate:
            self.inside = True
            try:
                await self._leave.wait()
            finally:
                self.inside = False

    async def leave(self) -> None:
        self._leave.set()
        await self.task


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_ordinary_attempts_share_the_process() -> None:
    company = Company()
    visitors = [Visitor(company, alone=False) for _ in range(3)]
    await settle()
    assert all(visitor.inside for visitor in visitors)
    for visitor in visitors:
        await visitor.leave()


async def test_a_suspect_waits_until_everybody_has_left_and_nobody_joins_it() -> None:
    company = Company()
    before = Visitor(company, alone=False)
    await settle()
    suspect = Visitor(company, alone=True)
    await settle()
    assert not suspect.inside
    await before.leave()
    await settle()
    assert suspect.inside
    after = Visitor(company, alone=False)
    await settle()
    assert not after.inside
    await suspect.leave()
    await settle()
    assert after.inside
    await after.leave()


async def test_a_waiting_suspect_goes_before_newcomers_or_a_busy_process_would_never_be_empty() -> None:
    company = Company()
    running = Visitor(company, alone=False)
    await settle()
    suspect = Visitor(company, alone=True)
    newcomer = Visitor(company, alone=False)
    await settle()
    assert (suspect.inside, newcomer.inside) == (False, False)
    await running.leave()
    await settle()
    assert (suspect.inside, newcomer.inside) == (True, False)
    await suspect.leave()
    await newcomer.leave()


async def test_suspects_go_one_after_the_other() -> None:
    company = Company()
    suspects = [Visitor(company, alone=True) for _ in range(3)]
    for suspect in suspects:
        await settle()
        assert [other.inside for other in suspects].count(True) == 1
        assert suspect.inside
        await suspect.leave()


async def test_a_suspect_that_is_cancelled_while_it_waits_lets_the_others_in() -> None:
    company = Company()
    running = Visitor(company, alone=False)
    await settle()
    suspect = Visitor(company, alone=True)
    newcomer = Visitor(company, alone=False)
    await settle()
    suspect.task.cancel()
    await settle()
    assert newcomer.inside
    await running.leave()
    await newcomer.leave()


async def test_a_cancellation_at_the_moment_of_admission_passes_the_turn_on() -> None:
    company = Company()
    suspect = Visitor(company, alone=True)
    await settle()
    waiting = [Visitor(company, alone=True), Visitor(company, alone=False)]
    await settle()
    suspect._leave.set()  # its task lets the next suspect in …
    await asyncio.sleep(0)
    waiting[0].task.cancel()  # … which is cancelled before it has run
    await settle()
    assert waiting[0].task.cancelled()
    assert waiting[1].inside
    await waiting[1].leave()


async def test_a_turn_is_not_given_to_a_task_that_is_cancelled_and_has_not_run_yet() -> None:
    company = Company()
    suspect = Visitor(company, alone=True)
    await settle()
    cancelled, waiting = Visitor(company, alone=False), Visitor(company, alone=False)
    await settle()
    suspect._leave.set()  # its task runs first,
    cancelled.task.cancel()  # and this one's turn is gone by then
    await settle()
    assert suspect.task.done()
    assert suspect.task.exception() is None
    assert waiting.inside
    await waiting.leave()
    last = Visitor(company, alone=True)
    await settle()
    assert last.inside, "somebody who never came in is still counted"
    await last.leave()


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["share", "alone", "leave", "cancel", "leave and cancel", "tick"]),
        st.integers(0, 7),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(MOVES)
@example([("alone", 0, True), ("share", 0, True), ("leave and cancel", 0, True)])
def test_whatever_happens_at_the_gate_a_suspect_is_alone_and_no_place_is_lost(
    moves: list[tuple[str, int, bool]],
) -> None:
    asyncio.run(_play(moves))


async def _play(moves: list[tuple[str, int, bool]]) -> None:
    company = Company()
    visitors: list[Visitor] = []

    def check() -> None:
        inside = [visitor for visitor in visitors if visitor.inside]
        assert len(inside) == 1 or not any(visitor.alone for visitor in inside), "a suspect has company"

    for move, number, ticks in moves:
        here = [visitor for visitor in visitors if not visitor.task.done()]
        chosen = here[number % len(here)] if here else None
        match move:
            case "share" | "alone":
                visitors.append(Visitor(company, alone=move == "alone"))
            case "leave" if chosen is not None:
                chosen._leave.set()
            case "cancel" if chosen is not None:
                chosen.task.cancel()
            case "leave and cancel" if chosen is not None:
                chosen._leave.set()
                here[(number + 1) % len(here)].task.cancel()
        if ticks or move == "tick":
            await asyncio.sleep(0)
            check()
    for visitor in visitors:
        visitor._leave.set()
    async with asyncio.timeout(2):
        ended = await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)
    assert all(error is None or isinstance(error, asyncio.CancelledError) for error in ended), ended
    last = Visitor(company, alone=True)
    await settle()
    assert last.inside, "somebody who has gone is still counted"
    await last.leave()


async def test_who_stays_shared_keeps_suspects_out_and_nobody_else() -> None:
    company = Company()
    async with company.shared():
        leave = company.stay(alone=False)
    ordinary, suspect = Visitor(company, alone=False), Visitor(company, alone=True)
    await settle()
    assert ordinary.inside and not suspect.inside
    await ordinary.leave()
    await settle()
    assert not suspect.inside
    leave()
    leave()
    await settle()
    assert suspect.inside
    await suspect.leave()


async def test_who_stays_alone_keeps_everybody_out() -> None:
    company = Company()
    async with company.alone():
        leave = company.stay(alone=True)
    ordinary, suspect = Visitor(company, alone=False), Visitor(company, alone=True)
    await settle()
    assert not ordinary.inside and not suspect.inside
    leave()
    await settle()
    assert suspect.inside != ordinary.inside
    await suspect.leave()
    await ordinary.leave()
