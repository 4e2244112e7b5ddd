"""Reports of exhausted messages under SIGKILL, SIGSTOP, SIGTERM and poison: at least one run, one committed report."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inbox import exhaustions
from inbox.exhaustions import Answer, ExhaustionState
from inbox.points import EXHAUSTED_POINTS
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.process import StartFleet
from tests.support.reporting import DDL, reported_once_each
from tests.support.service import QUEUE, Service
from tests.support.vhosts import Vhost

# Each message ends by its first failure; the delivery of its record has the consumer's own patience.
_CONSUMER: dict[str, Any] = {
    "queue": QUEUE,
    "handler": "tests.support.reporting:reported",
    "max_attempts": 100,
    "max_aborts": 100,
    "handler_timeout": "2s",
    "types": {"test.work": {"max_attempts": 1}},
}

Prepare = Callable[..., Any]


@pytest_asyncio.fixture
async def prepare(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Prepare:
    """`service = await prepare(max_attempts=2)`: a prepared service whose consumer reports what is exhausted."""

    async def make(*, tables: Any = None, **differences: Any) -> Service:
        service = Service(
            tmp_path, database, vhost, fleet, consumers={"reported": {**_CONSUMER, **differences}}, tables=tables
        )
        await service.prepare()
        await database.execute(DDL)
        return service

    return make


async def _delivered(service: Service, ids: list[str], within_s: float = 40.0) -> None:
    async def all_acknowledged() -> bool:
        states = await service.database.fetch("select message_id, acknowledged_at, try_error from inbox.exhaustion")
        open_ones = [dict(row) for row in states if row["acknowledged_at"] is None]
        assert len(states) == len(ids) and not open_ones, f"{len(states)} of {len(ids)} records, open: {open_ones}"
        return True

    await eventually(all_acknowledged, within_s, what="every record being acknowledged", every_s=0.2)
    await reported_once_each(service.database, set(ids))
    assert set(ids) == set(service.starts()), "a report was never run"


@pytest.mark.parametrize("point", EXHAUSTED_POINTS)
async def test_a_kill_at_a_named_point_of_a_try_neither_loses_nor_doubles_its_report(
    point: str, prepare: Prepare, rounds: Callable[[int, int], int]
) -> None:
    service = await prepare()
    ids: list[str] = []
    for number in range(rounds(3, 10)):
        batch = [f"failing-{number}-{each}" for each in range(3)]
        await service.publish(*batch)
        ids += batch
        await service.spawn(kill_at=point).exited(-signal.SIGKILL, within_s=30)
    last = await service.start()
    await service.settled()
    await _delivered(service, ids)
    await service.stopped(last)
    await service.at_rest()


async def test_a_report_that_kills_its_process_ends_stuck_and_costs_the_others_nothing(prepare: Prepare) -> None:
    service = await prepare(max_attempts=2)
    good = [f"good-{number}" for number in range(5)]
    await service.publish("deadly", report={"kill_in": [1, 2]})
    await service.publish(*good)
    deaths = 0
    while True:
        process = service.spawn()

        async def stuck() -> bool:
            return bool(await service.database.fetchval("select count(*) from inbox.exhaustion where stuck"))

        async def over(process: Any = process) -> bool:
            return process.exit_code is not None or await stuck()

        await eventually(over, 40, what="the process dying, or the record being stuck", every_s=0.1)
        if process.exit_code is None:
            break
        await process.exited(-signal.SIGKILL)
        deaths += 1
    # One death in company is free, so two that are charged take a third.
    assert deaths == 3

    def told() -> list[Any]:
        return [line for line in process.events("exhaustion.tried") if line["result"] == "stuck"]

    (line,) = await eventually(told, 20, what="the log telling of it")
    assert line["level"] == "error"
    await eventually(lambda: _reported(service, good), 20, what="the good ones being reported")
    tries = await service.database.fetch("select tries from inbox.exhaustion where message_id <> 'deadly'")
    assert [row["tries"] for row in tries] == [1] * len(good)
    await service.stopped(process)


async def _reported(service: Service, ids: list[str]) -> bool:
    rows = await service.database.fetch("select message_id from report")
    return sorted(row["message_id"] for row in rows) == sorted(ids)


async def test_a_record_that_fails_holds_up_nobody_and_waits_for_an_operator_across_restarts(prepare: Prepare) -> None:
    service = await prepare(max_attempts=2)
    await service.publish("first", report={"fail_in": [1, 2]})
    await service.publish("second")
    process = await service.start()
    await eventually(lambda: _reported(service, ["second"]), 20, what="the second one's report")
    connection = await service.database.connect()

    async def stuck() -> list[exhaustions.Exhaustion]:
        return await exhaustions.find(connection, states=[ExhaustionState.STUCK])

    (found,) = await eventually(stuck, 20, what="the first one being stuck")
    assert (found.message_id, found.tries) == ("first", 2)
    assert found.try_error == "RuntimeError: as the test wished"
    await service.stopped(process)

    process = await service.start()
    assert await stuck() == [found], "a restart tried it again"
    assert await exhaustions.acknowledge(connection, [found.id], by_whom="ann") == {found.id: Answer.DONE}
    await connection.close()
    await service.stopped(process)
    assert service.starts() == {"first": 2, "second": 1}


async def test_a_process_frozen_in_a_report_commits_nothing_once_another_has_taken_it_over(prepare: Prepare) -> None:
    service = await prepare(handler_timeout="1s")
    await service.publish("only")
    late = service.spawn(freeze_at="exhausted.effects")
    await late.frozen()
    other = await service.start()
    # The server ends the frozen one's session when it has been idle in its transaction for too long.
    await _delivered(service, ["only"], within_s=60)
    late.proceed()
    await eventually(
        lambda: [line["result"] for line in late.events("exhaustion.tried")] == ["unknown"], 20, what="the late one"
    )
    await reported_once_each(service.database, {"only"})
    assert service.starts() == {"only": 2}
    await service.stopped(late, other)


async def test_a_process_frozen_before_its_report_runs_none_once_another_has_taken_it_over(prepare: Prepare) -> None:
    service = await prepare()
    await service.publish("only")
    late = service.spawn(freeze_at="exhausted.counted")
    await late.frozen()
    other = await service.start()
    await _delivered(service, ["only"])
    late.proceed()
    await eventually(
        lambda: [line["result"] for line in late.events("exhaustion.tried")] == ["lost"], 20, what="the late one"
    )
    await reported_once_each(service.database, {"only"})
    assert service.starts() == {"only": 1}
    await service.stopped(late, other)


async def test_a_stop_lets_a_running_report_finish_and_begins_no_other(prepare: Prepare) -> None:
    service = await prepare(handler_timeout="5s")
    reached, go_on = service.file("reached"), service.file("go-on")
    await service.publish("slow", report={"reached": str(reached), "wait_for": str(go_on)})
    process = await service.start()
    await eventually(reached.exists, 20, what="the report running")
    await service.publish("next")
    await service.settled()
    process.terminate()
    await eventually(lambda: bool(process.events("consumer.draining")), 20, what="the drain")
    go_on.touch()
    await process.exited(0)
    assert service.starts() == {"slow": 1}
    rows = await service.database.fetch("select message_id from report")
    assert [row["message_id"] for row in rows] == ["slow"]
    process = await service.start()
    await _delivered(service, ["slow", "next"])
    await service.stopped(process)


async def test_a_report_that_outlasts_the_drain_is_given_back_uncharged(prepare: Prepare) -> None:
    service = await prepare(handler_timeout="4s", tables={"drain": {"deadline": "5s"}})
    reached, go_on = service.file("reached"), service.file("go-on")
    await service.publish("slow", report={"reached": str(reached), "wait_for": str(go_on)})
    process = await service.start()
    await eventually(reached.exists, 20, what="the report running")
    process.terminate()
    await eventually(lambda: bool(process.events("consumer.draining")), 20, what="the drain")
    process.terminate()  # hurry: the waiting for what runs is skipped
    await process.exited(0)
    go_on.touch()
    row = await service.database.fetchrow("select tries, aborts, try_ended from inbox.exhaustion")
    assert row is not None
    assert (row["tries"], row["aborts"], row["try_ended"]) == (0, 1, True)
    process = await service.start()
    await _delivered(service, ["slow"])
    await service.stopped(process)
