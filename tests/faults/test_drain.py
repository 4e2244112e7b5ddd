"""How a process ends when the platform asks it to, whatever it is doing and whatever does not answer: in time, exit 0.

What it had begun is finished or given back, charged to nobody, and the next process does the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from servers import PostgresServer, RabbitServer
from servers.addresses import with_address
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.outcomes import not_ready, nothing_charged, outcomes
from tests.support.process import FleetProcess, StartFleet
from tests.support.relay import RelayBefore
from tests.support.service import QUEUE, Service
from tests.support.vhosts import Vhost

Rounds = Callable[[int, int], int]

_POOL = "tests-work"
_PREFETCH = 6
_HANDLER_TIMEOUT_S = 3
_STEPS_S = {"cancel_timeout": 1, "deadline": 4, "settle_timeout": 2, "close_timeout": 2}
_BOUND_S = sum(_STEPS_S.values()) + 3
"""All steps of a stop together, and what a busy machine takes to start and end an interpreter."""
_QUICK_DRAIN = {"drain": {key: f"{seconds}s" for key, seconds in _STEPS_S.items()}}
_AT_ONCE_S = 5
"""Far below the deadline of a drain that waits."""


def _service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet, **consumer: object) -> Service:
    return Service(
        tmp_path,
        database,
        vhost,
        fleet,
        consumers={"work": {"handler_timeout": f"{_HANDLER_TIMEOUT_S}s", **consumer}},
        tables=_QUICK_DRAIN,
    )


@pytest.fixture
async def quick(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """The service under test with short steps of the drain."""
    service = _service(tmp_path, database, vhost, fleet)
    await service.prepare()
    return service


@pytest.fixture
async def on_own_broker(tmp_path: Path, database: Database, own_vhost: Vhost, fleet: StartFleet) -> Service:
    """The same on a broker that may be stopped."""
    service = _service(tmp_path, database, own_vhost, fleet)
    await service.prepare()
    return service


@pytest.fixture
async def on_own_postgres(tmp_path: Path, own_database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """The same on a database server that may be stopped."""
    service = _service(tmp_path, own_database, vhost, fleet)
    await service.prepare()
    return service


async def _nothing_unacknowledged(service: Service) -> None:
    async def none() -> bool:
        return not any(counts.unacknowledged for counts in (await service.vhost.queues()).values())

    # The broker notices the end of a connection a moment after the process has ended.
    await eventually(none, 5, what="no message being unacknowledged")


async def _the_next_one_does_the_rest(service: Service, ids: list[str]) -> None:
    process = await service.start()
    await service.settled(30)
    await service.exact(ids)
    nothing_charged(process)
    await service.stopped(process)
    await service.at_rest()


async def _sleeping(service: Service, path: str) -> FleetProcess:
    """Start a process and return it when its one handler sleeps in the database.

    Args:
        path: "hot" for a first delivery; "counted" for one that comes as redelivered, which is on record while it runs.
    """
    publish = service.publish if path == "hot" else service.publish_redelivered
    await publish("sleeper", sql_sleep_s=600)
    process = await service.start()

    async def sleeps() -> bool:
        return any("pg_sleep" in row["query"] for row in await service.database.sessions(_POOL))

    await eventually(sleeps, what="the handler sleeping in the database")
    return process


async def _sessions_are_gone(service: Service) -> None:
    async def none() -> bool:
        return not await service.database.sessions(_POOL)

    # A session whose client is gone looks for it every 2 s.
    await eventually(none, 6, what="no session of the pool being left")


# While all is well.


async def test_a_stop_in_the_middle_of_a_burst_finishes_what_runs_and_gives_the_rest_back(quick: Service) -> None:
    process = await quick.start()
    ids = [f"message-{number}" for number in range(300)]
    publishing = asyncio.create_task(quick.publish(*ids, sql_sleep_s=0.05))
    await eventually(lambda: len(quick.calls()) > 20, 20, what="work going on")
    process.terminate()
    await process.exited(0, _BOUND_S)
    await publishing
    await _nothing_unacknowledged(quick)
    assert len(quick.calls()) < len(ids), "the burst was over"
    assert outcomes(process) == {"processed": len(quick.calls())}
    stopped_at = datetime.fromisoformat(process.events("process.signal")[0]["timestamp"]).timestamp()
    late = [call for call in quick.calls() if call["at"] > stopped_at]
    assert len(late) <= _PREFETCH, f"{len(late)} handlers were started after the signal"
    await _the_next_one_does_the_rest(quick, ids)
    assert set(quick.starts().values()) == {1}


async def test_a_stop_waits_for_running_handlers_and_is_not_ready_but_alive_meanwhile(quick: Service) -> None:
    process = await quick.start()
    go_on = quick.file("go-on")
    await quick.publish("slow", wait_for=str(go_on))
    await eventually(lambda: quick.starts()["slow"] == 1, what="the handler running")
    process.terminate()
    await not_ready(process, within_s=2)
    status, _ = await process.get("/livez")
    assert status == 200
    go_on.touch()
    await process.exited(0, _BOUND_S)
    assert outcomes(process) == {"processed": 1}
    await quick.settled()
    await quick.exact(["slow"])


@pytest.mark.parametrize("path", ["hot", "counted"])
async def test_a_handler_that_sleeps_in_the_database_for_ever_holds_up_no_stop(path: str, quick: Service) -> None:
    process = await _sleeping(quick, path)
    process.terminate()
    await process.exited(0, _BOUND_S)
    await _sessions_are_gone(quick)
    await _nothing_unacknowledged(quick)
    # It had the time that it may have, and a stop is no excuse.
    [attempt] = await quick.database.fetch("select outcome, charged from inbox.attempt")
    assert (attempt["outcome"], attempt["charged"]) == ("timed_out", True)
    assert await quick.database.fetchval("select state from inbox.message") == "waiting"


@pytest.mark.parametrize("path", ["hot", "counted"])
async def test_a_second_signal_gives_up_what_runs_and_charges_nobody(path: str, service: Service) -> None:
    process = await _sleeping(service, path)
    process.terminate()
    await eventually(lambda: process.events("consumer.draining"), what="the drain having begun")
    began = time.monotonic()
    process.terminate()
    await process.exited(0)
    assert time.monotonic() - began < _AT_ONCE_S
    await _sessions_are_gone(service)
    await _nothing_unacknowledged(service)
    assert outcomes(process) == {"stopped": 1}
    attempts = await service.database.fetch("select outcome, charged from inbox.attempt")
    if path == "hot":
        assert attempts == []
        assert await service.database.fetchval("select count(*) from inbox.message") == 0
    else:
        assert [(row["outcome"], row["charged"]) for row in attempts] == [("aborted", False)]
        assert await service.database.fetchval("select state from inbox.message") == "waiting"
    assert (await service.vhost.counts(QUEUE)).ready == 1


async def test_a_handler_that_blocks_a_thread_holds_up_no_stop(service: Service) -> None:
    process = await service.start()
    await service.publish("blocked", kind="test.plain", block_s=60)
    await eventually(lambda: service.starts()["blocked"] == 1, what="the handler running")
    process.terminate()
    await eventually(lambda: process.events("consumer.draining"), what="the drain having begun")
    process.terminate()
    await process.exited(0, _AT_ONCE_S + 3)
    await _sessions_are_gone(service)
    assert await service.database.fetchval("select count(*) from ledger") == 0
    assert await service.database.fetchval("select count(*) from inbox.message") == 0


async def test_five_rollouts_during_one_slow_message_cost_it_nothing(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 1}})
    await service.prepare()
    go_on = service.file("go-on")
    await service.publish("slow", wait_for=str(go_on))
    for rollout in range(1, 6):
        process = await service.start()
        await eventually(
            lambda rollout=rollout: service.starts()["slow"] == rollout, 20, what=f"the handler running, time {rollout}"
        )
        process.terminate()
        await eventually(lambda process=process: process.events("consumer.draining"), what="the drain having begun")
        process.terminate()
        await process.exited(0)
        nothing_charged(process)
    # The first delivery was not counted before it ran, so nothing is on record of its attempt.
    attempts = await database.fetch("select outcome, charged from inbox.attempt order by number")
    assert [(row["outcome"], row["charged"]) for row in attempts] == [("aborted", False)] * 4
    go_on.touch()
    await _the_next_one_does_the_rest(service, ["slow"])


async def test_a_kill_in_the_middle_of_a_drain_is_safe(quick: Service, rounds: Rounds) -> None:
    ids: list[str] = []
    for number in range(rounds(2, 20)):
        batch = [f"slow-{number}-{each}" for each in range(_PREFETCH + 4)]
        ids += batch
        await quick.publish(*batch, copies=2, sleep_s=0.5)
        process = await quick.start()
        await eventually(lambda batch=batch: quick.starts().keys() & set(batch), 20, what="work going on")
        process.terminate()
        await eventually(lambda process=process: process.events("consumer.draining"), what="the drain having begun")
        process.kill()
        await eventually(lambda process=process: process.exit_code is not None, what="the end of the process")
    await _the_next_one_does_the_rest(quick, ids)


async def test_a_blocked_event_loop_is_alive_as_soon_as_it_answers(quick: Service) -> None:
    process = await quick.start()
    await quick.publish("blocking", block_s=2.5)
    await eventually(lambda: quick.starts()["blocking"] == 1, what="the handler blocking the loop")
    status, _ = await process.get("/livez")
    assert status == 200
    await quick.settled()
    await quick.exact(["blocking"])
    await quick.stopped(process)


# While a server does not answer.


async def test_a_stop_ends_in_time_while_the_broker_is_frozen(on_own_broker: Service, own_broker: RabbitServer) -> None:
    process = await on_own_broker.start()
    go_on = on_own_broker.file("go-on")
    ids = [f"message-{number}" for number in range(_PREFETCH + 2)]
    await on_own_broker.publish(*ids, wait_for=str(go_on))
    await eventually(lambda: len(on_own_broker.calls()) == 4, what="every lane being at work")
    await asyncio.to_thread(own_broker.freeze)
    process.terminate()
    await not_ready(process, within_s=2)
    go_on.touch()
    await process.exited(0, _BOUND_S)
    await asyncio.to_thread(own_broker.proceed)
    await _the_next_one_does_the_rest(on_own_broker, ids)


async def test_a_stop_ends_in_time_while_the_database_is_frozen(
    on_own_postgres: Service, own_postgres: PostgresServer
) -> None:
    process = await on_own_postgres.start()
    go_on = on_own_postgres.file("go-on")
    ids = [f"message-{number}" for number in range(_PREFETCH + 2)]
    await on_own_postgres.publish(*ids, wait_for=str(go_on))
    await eventually(lambda: len(on_own_postgres.calls()) == 4, what="every lane being at work")
    await asyncio.to_thread(own_postgres.freeze)
    go_on.touch()
    process.terminate()
    await process.exited(0, _BOUND_S)
    await _nothing_unacknowledged(on_own_postgres)
    await asyncio.to_thread(own_postgres.proceed)
    await _the_next_one_does_the_rest(on_own_postgres, ids)


async def test_a_stop_ends_in_time_while_the_broker_is_gone(on_own_broker: Service, own_broker: RabbitServer) -> None:
    process = await on_own_broker.start()
    go_on = on_own_broker.file("go-on")
    await on_own_broker.publish("running", wait_for=str(go_on))
    await eventually(lambda: len(on_own_broker.calls()) == 1, what="the handler running")
    await asyncio.to_thread(own_broker.stop_app)
    await eventually(lambda: process.events("subscription.waiting"), what="the process trying to connect again")
    process.terminate()
    go_on.touch()
    await process.exited(0, _BOUND_S)
    assert outcomes(process) == {"processed": 1}
    await asyncio.to_thread(own_broker.start_app)
    await _the_next_one_does_the_rest(on_own_broker, ["running"])


async def test_a_stop_ends_in_time_while_the_database_is_gone_and_gives_back_what_is_held(
    on_own_postgres: Service, own_postgres: PostgresServer
) -> None:
    process = await on_own_postgres.start()
    await asyncio.to_thread(own_postgres.stop)
    ids = [f"message-{number}" for number in range(_PREFETCH + 2)]
    await on_own_postgres.publish(*ids)
    await eventually(lambda: process.events("breaker.opened"), 20, what="the breaker being open")
    process.terminate()
    await process.exited(0, _BOUND_S)
    await _nothing_unacknowledged(on_own_postgres)
    assert (await on_own_postgres.vhost.counts(QUEUE)).ready == len(ids)
    assert on_own_postgres.calls() == []
    await asyncio.to_thread(own_postgres.start)
    await _the_next_one_does_the_rest(on_own_postgres, ids)


async def test_a_stop_ends_in_time_while_parks_are_held_under_a_memory_alarm(
    tmp_path: Path, database: Database, own_vhost: Vhost, own_broker: RabbitServer, fleet: StartFleet
) -> None:
    service = _service(tmp_path, database, own_vhost, fleet, pacing=["200ms"])
    await service.prepare()
    process = await service.start()
    go_on = service.file("go-on")
    ids = ["failing-1", "failing-2"]
    await service.publish(*ids, fail_in=[1], wait_for=str(go_on))
    await eventually(lambda: len(service.calls()) == 2, what="both handlers running")
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, 0)
    go_on.touch()
    await eventually(lambda: outcomes(process)["waiting"] == 2, what="both having failed")
    process.terminate()
    await process.exited(0, _BOUND_S)
    await _nothing_unacknowledged(service)
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, None)
    await _the_next_one_does_the_rest(service, ids)


# Before it has started.


@pytest.mark.parametrize("server", ["database", "broker"])
@pytest.mark.parametrize("way", ["refuses", "is silent"])
async def test_a_stop_before_a_server_was_ever_reached_ends_at_once(
    server: str, way: str, service: Service, relay_before: RelayBefore
) -> None:
    direct = service.database.url if server == "database" else service.vhost.url
    relay = await relay_before(direct)
    if way == "refuses":
        relay.refuse()
    else:
        relay.half_open()
    url = with_address(direct, "127.0.0.1", relay.port)
    process = service.spawn(database_url=url) if server == "database" else service.spawn(amqp_url=url)
    if way == "refuses":
        await eventually(lambda: process.events("process.waiting"), 20, what="the process waiting for the server")
    else:
        await eventually(
            lambda: relay.connections and process.events("http.listening"), 20, what="the process connecting"
        )
    assert await _is_alive(process)
    began = time.monotonic()
    process.terminate()
    await process.exited(0)
    assert time.monotonic() - began < _AT_ONCE_S
    assert [event["started"] for event in process.events("process.stopped")] == [False]


async def _is_alive(process: FleetProcess) -> bool:
    live, _ = await process.get("/livez")
    ready, said = await process.get("/readyz")
    assert "starting" in said or "answer" in said or "refuse" in said.lower(), said
    return (live, ready) == (200, 503)


async def test_a_handler_that_swallows_every_cancellation_keeps_no_process_alive(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(
        tmp_path, database, vhost, fleet, consumers={"work": {"handler_timeout": "1s", "max_attempts": 1}}
    )
    await service.prepare()
    process = await service.start()
    await service.publish("clinging", clings=True)
    await eventually(lambda: outcomes(process).get("exhausted") == 1, 20, what="the handler being abandoned")
    process.terminate()
    await process.exited(0, 10)
