"""Whatever happens in whatever order: one effect for each message, or a terminal row with its budget spent.

hypothesis chooses what happens next; after each step the database is asked. At the end of each example everything runs
to its end without further faults, and nothing may be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from structlog.testing import capture_logs

from consumers.telemetry import Telemetry
from tests.invariants.fleet import Shelf
from tests.invariants.line import Fate
from tests.invariants.loop import Loop
from tests.invariants.script import Verdict
from tests.invariants.witness import Witness
from tests.invariants.world import World
from tests.support.databases import Databases

numbers = st.integers(0, 11)
points = st.integers(0, 12)
verdicts = st.one_of(st.just(Verdict.SUCCEED), st.just(Verdict.FAIL), st.sampled_from(Verdict))


def _some(choices: Callable[[World], Any]) -> Any:
    """Let a rule be chosen only where there is something to choose from."""
    return precondition(lambda machine: bool(choices(machine.world)))


class Interleavings(RuleBasedStateMachine):
    """Plays with one world; each rule is one thing that can happen."""

    runner: asyncio.Runner
    witness: Witness
    telemetry: Telemetry
    shelf: Shelf
    logs: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.witness, self.telemetry, self.shelf)

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        async def stepped() -> None:
            await step
            await self.world.facts.check()

        self.runner.run(stepped())
        bugs = [event for event in self.logs if event["event"] == "lane.fault"]
        self.logs.clear()
        assert not bugs, bugs

    @initialize(senders=st.lists(numbers, min_size=2, max_size=6))
    def begin(self, senders: list[int]) -> None:
        self._run(self.world.begin())
        for sender in senders:
            if self.world.senders():
                self._run(self.world.send(sender))

    def teardown(self) -> None:
        try:
            self._run(self.world.calm_down())
        finally:
            self.runner.run(self.world.close())

    @_some(lambda world: world.broker.ready and world.idle())
    @rule(copy=numbers, lane=numbers)
    def a_lane_takes_a_copy_as_far_as_its_handler(self, copy: int, lane: int) -> None:
        self._run(self.world.deliver(copy, lane, points=None, verdict=None))

    @_some(lambda world: world.broker.ready and world.idle())
    @rule(copy=numbers, lane=numbers, verdict=verdicts)
    def a_lane_works_on_a_copy(self, copy: int, lane: int, verdict: Verdict) -> None:
        self._run(self.world.deliver(copy, lane, points=None, verdict=verdict))

    @_some(lambda world: world.broker.ready and world.idle())
    @rule(copy=numbers, lane=numbers, points=points, verdict=verdicts)
    def a_lane_takes_a_copy_part_of_the_way(self, copy: int, lane: int, points: int, verdict: Verdict) -> None:
        self._run(self.world.deliver(copy, lane, points=points, verdict=verdict))

    @_some(lambda world: world.broker.ready and world.idle())
    @rule(copy=numbers, lane=numbers, verdict=verdicts)
    def a_claim_waits_right_before_the_lock(self, copy: int, lane: int, verdict: Verdict) -> None:
        self._run(self.world.deliver(copy, lane, points=None, verdict=verdict, door=True))

    @_some(lambda world: world.held())
    @rule(lane=numbers)
    def a_lane_goes_on(self, lane: int) -> None:
        self._run(self.world.go(lane, points=None))

    @_some(lambda world: world.held())
    @rule(lane=numbers, points=points)
    def a_lane_goes_a_part_of_its_way(self, lane: int, points: int) -> None:
        self._run(self.world.go(lane, points=points))

    @_some(lambda world: world.handling())
    @rule(lane=numbers, verdict=verdicts)
    def a_handler_ends(self, lane: int, verdict: Verdict) -> None:
        self._run(self.world.answer(lane, verdict, points=None))

    @_some(lambda world: world.handling())
    @rule(lane=numbers, verdict=verdicts, points=points)
    def a_handler_ends_and_its_lane_goes_a_part_of_its_way(self, lane: int, verdict: Verdict, points: int) -> None:
        self._run(self.world.answer(lane, verdict, points=points))

    @_some(lambda world: world.doors())
    @rule(door=numbers)
    def a_claim_goes_on_to_the_lock(self, door: int) -> None:
        self._run(self.world.open_door(door))

    @_some(lambda world: world.sessions())
    @rule(session=numbers)
    def a_session_is_ended(self, session: int) -> None:
        self._run(self.world.kill(session))

    @_some(lambda world: world.sessions())
    @rule(session=numbers, fate=st.sampled_from(Fate))
    def the_line_of_a_session_is_cut(self, session: int, fate: Fate) -> None:
        self._run(self.world.cut(session, fate))

    @_some(lambda world: world.late())
    @rule(orphan=numbers)
    def a_late_statement_arrives(self, orphan: int) -> None:
        self._run(self.world.orphan_executes(orphan))

    @_some(lambda world: world.orphans())
    @rule(orphan=numbers)
    def the_server_ends_a_session_without_client(self, orphan: int) -> None:
        self._run(self.world.orphan_ends(orphan))

    @_some(lambda world: world.at_work())
    @rule(process=numbers, lingers=st.booleans())
    def a_process_dies(self, process: int, lingers: bool) -> None:
        self._run(self.world.die(process, lingers=lingers))

    @_some(lambda world: world.at_work())
    @rule(process=numbers, cuts=st.booleans())
    def a_process_stops_in_order(self, process: int, cuts: bool) -> None:
        self._run(self.world.stop(process, cuts=cuts))

    @_some(lambda world: world.consuming())
    @rule(process=numbers)
    def a_process_loses_its_channel(self, process: int) -> None:
        self._run(self.world.lose_channel(process))

    @_some(lambda world: world.confirmed())
    @rule(process=numbers)
    def the_confirm_of_the_next_parked_copy_gets_lost(self, process: int) -> None:
        self._run(self.world.lose_confirm(process))

    @_some(lambda world: world.heard())
    @rule(process=numbers, lingers=st.booleans())
    def the_heartbeats_of_a_process_get_lost(self, process: int, lingers: bool) -> None:
        self._run(self.world.fall_silent(process, lingers=lingers))

    @_some(lambda world: world.silent())
    @rule(process=numbers)
    def the_heartbeats_of_a_process_arrive(self, process: int) -> None:
        self._run(self.world.be_heard(process))

    @_some(lambda world: world.owing())
    @rule(process=numbers)
    def a_process_settles_what_it_owes(self, process: int) -> None:
        self._run(self.world.pay(process))

    @_some(lambda world: world.waits())
    @rule(seconds=st.sampled_from((1.0, 5.0, 31.0)))
    def time_passes(self, seconds: float) -> None:
        self._run(self.world.pass_time(seconds))

    @_some(lambda world: world.at_work())
    @rule(process=numbers)
    def an_outage_ends_and_one_process_is_heard_before_the_others(self, process: int) -> None:
        self._run(self.world.outage(process))

    @_some(lambda world: world.senders())
    @rule(sender=numbers)
    def a_sender_publishes(self, sender: int) -> None:
        self._run(self.world.send(sender))

    @_some(lambda world: world.paused())
    @rule(process=numbers)
    def a_probe_succeeds(self, process: int) -> None:
        self._run(self.world.close_breaker(process))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the product's own pauses, which nothing here depends on."""
    monkeypatch.setattr("inbox.performing._RERUN_PAUSE_S", 0.0)
    monkeypatch.setattr("inbox.recording._PAUSE_S", 0.005)
    monkeypatch.setattr("inbox.running.CANCEL_WAIT_S", 0.02)
    monkeypatch.setattr("consumers.lane._BUG_PAUSE_S", 0.0)


@pytest.mark.timeout(1800)
def test_each_message_has_one_effect_or_ends_with_its_budget_spent(
    databases: Databases, rounds: Callable[[int, int], int], quick: None
) -> None:
    telemetry = Telemetry.create("invariants", "0")
    with asyncio.Runner(loop_factory=Loop) as runner, capture_logs() as logs:
        making = databases.database()
        database = runner.run(_entered(making))
        try:
            witness = Witness(database)
            shelf = Shelf(database.url)
            runner.run(witness.prepare())
            machine = type(
                "Interleavings",
                (Interleavings,),
                {"runner": runner, "witness": witness, "telemetry": telemetry, "shelf": shelf, "logs": logs},
            )
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=rounds(40, 1500),
                    stateful_step_count=80,
                    # The same examples for each change; new ones are looked for with --full.
                    derandomize=bool(rounds(1, 0)),
                    deadline=None,
                    database=None,
                    print_blob=True,
                    suppress_health_check=list(HealthCheck),
                ),
            )
            runner.run(shelf.close())
        finally:
            runner.run(making.__aexit__(None, None, None))
    telemetry.close()


async def _entered(making: Any) -> Any:
    return await making.__aenter__()
