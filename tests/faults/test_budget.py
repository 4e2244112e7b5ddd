"""The budget of a message, counted on every path on which an attempt can end, to the start.

What the guarantees call a bound is met here exactly: `max_attempts` charged attempts, one more start for each copy
whose first delivery died, one free death in company, `max_aborts` for what is nobody's fault.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.outcomes import outcomes
from tests.support.process import StartFleet
from tests.support.service import Service
from tests.support.supervisor import supervised
from tests.support.vhosts import Vhost

Prepare = Callable[..., Coroutine[Any, Any, Service]]

_MAX_ATTEMPTS = 3
_FAILING: dict[str, dict[str, Any]] = {
    "raises": {"fail_in": [-1]},
    "asks for a retry": {"retry_in": [-1]},
    "breaks its transaction": {"sql": "select 1 / 0"},
    "breaks its transaction and says nothing": {"swallow": True},
    "raises SystemExit": {"system_exit": True},
    "takes too long": {"sleep_s": 60},
    "takes too long in the database": {"sql_sleep_s": 60},
}
_OUT_OF_TIME = {name for name in _FAILING if name.startswith("takes too long")}

_MOST_RESIDENT = 300 * 2**20
"""Several times what a process of the fleet takes."""


@pytest_asyncio.fixture
async def prepare(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Prepare:
    """`service = await prepare(max_attempts=2)`: a prepared service whose deaths are judged after a second."""

    async def make(**consumer: object) -> Service:
        service = Service(
            tmp_path,
            database,
            vhost,
            fleet,
            consumers={"work": {"contention_step": "100ms", "pacing": ["0s"], **consumer}},
            tables={"members": {"heartbeat": "200ms", "expiry": "1s"}},
        )
        await service.prepare()
        return service

    return make


async def _exhausted(service: Service, *ids: str, reason: str = "attempts") -> None:
    async def all_of_them() -> bool:
        rows = await service.database.fetch("select message_id, state, reason from inbox.message order by message_id")
        assert [tuple(row) for row in rows] == [(name, "exhausted", reason) for name in sorted(ids)]
        return True

    await eventually(all_of_them, 60, what="the end of every bad message", every_s=0.1)


async def _attempts(service: Service, message_id: str) -> list[tuple[str, bool, bool]]:
    rows = await service.database.fetch(
        "select a.outcome, a.charged, a.alone from inbox.attempt a join inbox.message m using (key) "
        "where m.message_id = $1 order by a.number",
        message_id,
    )
    return [tuple(row) for row in rows]


async def test_a_message_that_fails_in_any_way_is_started_exactly_as_often_as_its_budget_says(
    prepare: Prepare,
) -> None:
    service = await prepare(max_attempts=_MAX_ATTEMPTS, handler_timeout="1s", lanes=8)
    counted = [f"{name}, counted first" for name in _FAILING]
    for name, message_id in zip(_FAILING, counted, strict=True):
        await service.publish(message_id, **_FAILING[name])
    await service.give_back(await service.take(len(counted)))
    for name, behaviour in _FAILING.items():
        await service.publish(name, **behaviour)
    await service.publish("good-1", "good-2", "good-3")
    process = await service.start()
    bad = [*_FAILING, *counted]
    await _exhausted(service, *bad)
    await service.settled()
    await service.exact(["good-1", "good-2", "good-3"], terminal=dict.fromkeys(bad, "exhausted"))
    assert service.starts() == {**dict.fromkeys(bad, _MAX_ATTEMPTS), "good-1": 1, "good-2": 1, "good-3": 1}
    for message_id in bad:
        ended = "timed_out" if message_id.removesuffix(", counted first") in _OUT_OF_TIME else "failed"
        assert await _attempts(service, message_id) == [(ended, True, False)] * _MAX_ATTEMPTS, message_id
    await service.stopped(process)
    await service.at_rest()


@pytest.mark.parametrize(
    ("way", "code"),
    [
        pytest.param("kill_in", -signal.SIGKILL, id="SIGKILL"),
        pytest.param("exit_in", 17, id="os._exit"),
        # As near to the OOM killer as a test comes: see `tests.support.supervisor`.
        pytest.param("hoard_in", -signal.SIGKILL, id="out of memory"),
    ],
)
async def test_a_message_that_ends_its_process_in_any_way_spends_exactly_its_budget(
    way: str, code: int, prepare: Prepare
) -> None:
    max_attempts = 2 if way == "kill_in" else 1
    service = await prepare(max_attempts=max_attempts, max_aborts=1)
    good = [f"good-{number}" for number in range(5)]
    await service.publish("deadly", **{way: [-1]})
    await service.publish(*good)
    async with supervised(service, most_resident=_MOST_RESIDENT) as supervisor:
        await _exhausted(service, "deadly")
        await service.settled(60)
    await service.exact(good, terminal={"deadly": "exhausted"})
    # The first delivery left no trace, and the first death on record was in company, as far as anybody could know.
    assert service.starts()["deadly"] == 1 + 1 + max_attempts
    assert await _attempts(service, "deadly") == [("crashed", False, False)] + [("crashed", True, True)] * max_attempts
    assert supervisor.deaths == [code] * (2 + max_attempts)
    await service.stopped(supervisor.running)
    await service.at_rest()


async def test_each_copy_whose_first_delivery_died_has_one_start_more_and_no_other_copy_has(prepare: Prepare) -> None:
    service = await prepare(max_attempts=1)
    died, others = 2, 2
    held = []
    for _ in range(died):
        # The copies that died before are out of the way, so this one is a first delivery with nothing on record.
        await service.publish("copied", kill_in=[-1])
        await service.spawn().exited(-signal.SIGKILL)
        held += await service.take(1)
    await service.publish("copied", copies=others, kill_in=[-1])
    assert await service.database.fetchval("select count(*) from inbox.message") == 0
    held += await service.take(others)
    await service.give_back(held)
    async with supervised(service) as supervisor:
        await _exhausted(service, "copied")
        await service.settled()
    assert service.starts()["copied"] == died + 1 + 1
    assert await _attempts(service, "copied") == [("crashed", False, False), ("crashed", True, True)]
    # However many copies come later, nothing starts any more.
    await service.publish("copied", copies=3, kill_in=[-1])
    await service.settled()
    assert service.starts()["copied"] == died + 1 + 1
    assert outcomes(supervisor.running)["absorbed"] >= 3
    await service.stopped(supervisor.running)


async def test_a_message_that_kills_its_session_is_never_charged_and_ends_all_the_same(prepare: Prepare) -> None:
    max_aborts = 3
    service = await prepare(max_attempts=1, max_aborts=max_aborts)
    process = await service.start()
    await service.publish("cuts-itself-off", sql="select pg_terminate_backend(pg_backend_pid())")
    await service.publish("good-1", "good-2")
    await _exhausted(service, "cuts-itself-off", reason="aborts")
    await service.settled()
    await service.exact(["good-1", "good-2"], terminal={"cuts-itself-off": "exhausted"})
    # Its first delivery lost its session with nothing on record.
    assert service.starts()["cuts-itself-off"] == 1 + max_aborts
    assert await _attempts(service, "cuts-itself-off") == [("aborted", False, False)] * max_aborts
    await service.stopped(process)
    await service.at_rest()


async def test_many_copies_of_a_message_never_burn_its_budget_faster_than_its_pacing(prepare: Prepare) -> None:
    pause_s, tolerance_s, max_attempts = 0.3, 0.05, 4
    service = await prepare(max_attempts=max_attempts, pacing=["300ms"], lanes=4)
    processes = [await service.start(), await service.start()]
    await service.publish("copied", copies=10, fail_in=[-1])
    await _exhausted(service, "copied")
    await service.settled()
    calls = sorted(call["at"] for call in service.calls())
    assert len(calls) == max_attempts
    # A start is noted a moment after its claim, and the pause begins after that: what lies between two is more.
    gaps = [later - earlier for earlier, later in pairwise(calls)]
    assert min(gaps) >= pause_s - tolerance_s, gaps
    assert outcomes(*processes)["absorbed"] >= 9
    await service.stopped(*processes)
