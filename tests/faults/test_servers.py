"""Whole servers that stop, die, freeze, refuse and come back under load: one effect each, nobody charged, nobody stuck.

In every test the fleet's processes live on: a server that is away is waited for, never a reason to restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from servers import PostgresServer, RabbitServer
from tests.support.databases import Database
from tests.support.eventually import eventually, throughout
from tests.support.outcomes import alive, not_ready, nothing_charged, outcomes
from tests.support.process import FleetProcess, StartFleet
from tests.support.service import Service
from tests.support.vhosts import Vhost

Rounds = Callable[[int, int], int]

pytestmark = pytest.mark.timeout(300)  # a broker takes ten seconds to come back, and comes back often in a full run

_BATCH = 40


async def _loaded(service: Service, number: int) -> list[str]:
    """Publish a batch and return its ids when work on it goes on and is far from done."""
    ids = [f"message-{number}-{each}" for each in range(_BATCH)]
    await service.publish(*ids, copies=2, sql_sleep_s=0.1)
    await eventually(
        lambda: len(service.starts().keys() & set(ids)) >= _BATCH // 6, 30, what="work on the batch going on"
    )
    assert len(service.starts().keys() & set(ids)) < _BATCH, "the batch is done already, and no fault could hit it"
    return ids


async def _ends_well(service: Service, ids: list[str], *processes: FleetProcess) -> None:
    await service.settled(60)
    await service.exact(ids)
    nothing_charged(*processes)
    for process in processes:
        await alive(process)
        await process.ready()
    await service.stopped(*processes)
    await service.at_rest()


# The broker.


@pytest.fixture
async def on_own_broker(tmp_path: Path, database: Database, own_vhost: Vhost, fleet: StartFleet) -> Service:
    """The service under test on a broker that may be stopped."""
    service = Service(tmp_path, database, own_vhost, fleet, tables={"broker": {"heartbeat": "1s"}})
    await service.prepare()
    return service


async def test_closing_all_connections_under_load_loses_and_doubles_nothing(service: Service, rounds: Rounds) -> None:
    processes = [await service.start(), await service.start()]
    ids: list[str] = []
    for number in range(rounds(3, 20)):
        ids += await _loaded(service, number)
        await service.vhost.close_all_connections()
    await _ends_well(service, ids, *processes)


@pytest.mark.parametrize("way", ["stop_app", "stop", "kill"])
async def test_a_broker_that_goes_and_comes_back_under_load_loses_and_doubles_nothing(
    way: str, on_own_broker: Service, own_broker: RabbitServer, rounds: Rounds
) -> None:
    service = on_own_broker
    process = await service.start()
    ids: list[str] = []
    for number in range(rounds(1, 5)):
        ids += await _loaded(service, number)
        await asyncio.to_thread(getattr(own_broker, way))
        await not_ready(process, within_s=10)
        await alive(process)
        await asyncio.to_thread(own_broker.start_app if way == "stop_app" else own_broker.start)
        await process.ready()
        assert (await service.vhost.counts("work")).consumers == 1
    await _ends_well(service, ids, process)


async def test_a_broker_that_froze_for_longer_than_its_heartbeats_is_consumed_from_again(
    on_own_broker: Service, own_broker: RabbitServer, rounds: Rounds
) -> None:
    service = on_own_broker
    process = await service.start()
    ids = await _loaded(service, 0)
    await asyncio.to_thread(own_broker.freeze)
    # Heartbeats of 1 s are given up after 6 s; until then nobody can know.
    await not_ready(process, within_s=15)
    await throughout(lambda: alive(process), rounds(3, 60), what="the process being alive while the broker is frozen")
    await asyncio.to_thread(own_broker.proceed)
    await process.ready(within_s=30)
    await _ends_well(service, ids, process)


async def test_under_a_memory_alarm_work_goes_on_and_what_would_be_parked_is_held(
    tmp_path: Path, database: Database, own_vhost: Vhost, own_broker: RabbitServer, fleet: StartFleet, rounds: Rounds
) -> None:
    service = Service(
        tmp_path,
        database,
        own_vhost,
        fleet,
        consumers={"work": {"pacing": ["200ms"], "lanes": 4}},
        tables={"broker": {"operation_timeout": "1s"}},
    )
    await service.prepare()
    process = await service.start()
    go_on = service.file("go-on")
    failing, good = ["failing-1", "failing-2"], [f"good-{each}" for each in range(60)]
    await service.publish(*failing, fail_in=[1], wait_for=str(go_on))
    await service.publish(*good, wait_for=str(go_on))
    await eventually(lambda: len(service.calls()) == 4, what="every lane being at work")
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, 0)
    go_on.touch()

    async def only_the_failing_are_left() -> bool:
        counts = await service.vhost.counts("work")
        return counts.total == counts.unacknowledged == len(failing)

    await eventually(only_the_failing_are_left, 30, what="all good messages being acknowledged under the alarm")
    began = len(process.events("message.not_parked"))
    alarm_s = rounds(5, 60)

    async def held() -> bool:
        starts = service.starts()
        return [starts[message_id] for message_id in failing] == [1, 1] and await only_the_failing_are_left()

    await throughout(held, alarm_s, what="the failing ones being held")
    await alive(process)
    # Each try to park takes an operation timeout of 1 s, so more tries than this would be spinning.
    tries = len(process.events("message.not_parked")) - began
    assert tries <= len(failing) * (alarm_s + 2), f"{tries} tries to park in {alarm_s} s"
    queues = await service.vhost.queues()
    assert not any(counts.total for name, counts in queues.items() if name.startswith("work.park."))

    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, None)
    await service.settled(30)
    await service.exact([*failing, *good])
    starts = service.starts()
    assert all(starts[message_id] == 2 for message_id in failing), starts
    assert all(starts[message_id] == 1 for message_id in good), starts
    await service.stopped(process)
    await service.at_rest()


# The database.


@pytest.fixture
async def on_own_postgres(tmp_path: Path, own_database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """The service under test, with little patience, on a database server that may be stopped."""
    service = Service(tmp_path, own_database, vhost, fleet, consumers={"work": {"max_attempts": 2, "lanes": 4}})
    await service.prepare()
    return service


@asynccontextmanager
async def _superuser(server: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.url("postgres", superuser=True))
    try:
        yield connection
    finally:
        await connection.close()


async def test_terminating_every_session_under_load_charges_nobody(service: Service, rounds: Rounds) -> None:
    processes = [await service.start(), await service.start()]
    ids: list[str] = []
    for number in range(rounds(3, 20)):
        ids += await _loaded(service, number)
        assert await service.database.terminate_sessions() > 0
    await _ends_well(service, ids, *processes)


@pytest.mark.parametrize("way", ["immediate", "kill"])
async def test_a_database_that_crashes_and_restarts_under_load_charges_nobody(
    way: str, on_own_postgres: Service, own_postgres: PostgresServer, rounds: Rounds
) -> None:
    service = on_own_postgres
    processes = [await service.start(), await service.start()]
    ids: list[str] = []
    for number in range(rounds(2, 5)):
        ids += await _loaded(service, number)
        if way == "kill":
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
        else:
            await asyncio.to_thread(own_postgres.restart, "immediate")
    await _ends_well(service, ids, *processes)


async def test_a_database_that_is_down_for_long_pauses_work_and_charges_nobody(
    on_own_postgres: Service, own_postgres: PostgresServer, rounds: Rounds
) -> None:
    service = on_own_postgres
    process = await service.start()
    ids = await _loaded(service, 0)
    await asyncio.to_thread(own_postgres.stop)
    said = await not_ready(process, within_s=5)
    assert "work" in said
    ids += ["published-meanwhile-1", "published-meanwhile-2"]
    await service.publish(*ids[-2:])

    async def is_paused() -> bool:
        status, _ = await process.get("/readyz")
        return await alive(process) and status == 503

    await throughout(is_paused, rounds(7, 30), what="the process being alive and not ready")
    # The breaker holds deliveries for 5 s here, and then lets the broker have them.
    assert (await service.vhost.counts("work")).unacknowledged == 0
    await asyncio.to_thread(own_postgres.start)
    await process.ready()
    await _ends_well(service, ids, process)


async def test_a_database_that_takes_no_writes_charges_nobody(
    on_own_postgres: Service, own_postgres: PostgresServer, rounds: Rounds
) -> None:
    service = on_own_postgres
    process = await service.start()
    ids = await _loaded(service, 0)
    # Redelivered ones and those with a row on record meet it too, on the counted path.
    ids += ["failed-once"]
    await service.publish("failed-once", fail_in=[1])
    # Asked often: its second attempt follows at once, and is to meet the fault.
    await eventually(
        lambda: service.starts()["failed-once"] >= 1, 30, what="a message having failed once", every_s=0.02
    )
    async with _superuser(own_postgres) as superuser:
        await superuser.execute("alter system set default_transaction_read_only = on")
        await superuser.execute("select pg_reload_conf()")
        try:
            said = await not_ready(process, within_s=10)
            assert "read-only" in said or "25006" in said
            await throughout(lambda: alive(process), rounds(4, 20), what="the process being alive")
        finally:
            await superuser.execute("alter system reset default_transaction_read_only")
            await superuser.execute("select pg_reload_conf()")
    await process.ready()
    await service.settled(60)
    await service.exact(ids)
    assert outcomes(process)["waiting"] == 1, "only the message that failed by itself is charged"
    await service.stopped(process)
    await service.at_rest()


async def test_a_database_that_froze_for_longer_than_a_statement_may_take_charges_nobody(
    tmp_path: Path,
    own_database: Database,
    own_postgres: PostgresServer,
    vhost: Vhost,
    fleet: StartFleet,
    rounds: Rounds,
) -> None:
    service = Service(
        tmp_path,
        own_database,
        vhost,
        fleet,
        consumers={"work": {"max_attempts": 1, "handler_timeout": "70s"}},
        tables={"drain": {"deadline": "80s", "grace_period": "120s"}},
    )
    await service.prepare()
    process = await service.start()
    ids = await _loaded(service, 0)
    await asyncio.to_thread(own_postgres.freeze)
    # The fleet's own statements may take 10 s, and its COMMIT 30 s.
    await throughout(
        lambda: alive(process), rounds(11, 35), what="the process being alive while the database is frozen"
    )
    await asyncio.to_thread(own_postgres.proceed)
    await process.ready(within_s=30)
    await _ends_well(service, ids, process)


async def test_a_role_with_too_few_connections_slows_work_down_and_no_more(
    tmp_path: Path, own_database: Database, own_postgres: PostgresServer, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, own_database, vhost, fleet, consumers={"work": {"lanes": 6, "max_attempts": 2}})
    await service.prepare()
    process = await service.start()

    async def heard_of() -> bool:
        """Whether its heartbeats come: a process that is not heard of for 2 s counts as dead here."""
        return bool(
            await own_database.fetchval(
                "select bool_and(heartbeat_at > clock_timestamp() - interval '2 s') from inbox.member"
            )
        )

    async with _superuser(own_postgres) as superuser:
        try:
            # One for the test, and four in place of nine for the fleet.
            await superuser.execute("alter role inbox connection limit 5")
            ids = await _loaded(service, 0)
            assert await own_database.terminate_sessions() > 0
            await throughout(heard_of, 3, what="the process being heard of")
            await service.settled(60)
            assert len(await own_database.sessions()) <= 4
            ids += await _loaded(service, 1)
            await throughout(heard_of, 1, what="the process being heard of")
            await alive(process)
        finally:
            await superuser.execute("alter role inbox connection limit -1")
    await service.settled(60)
    go_on = service.file("go-on")
    wide = [f"wide-{each}" for each in range(6)]
    await service.publish(*wide, wait_for=str(go_on))
    await eventually(lambda: service.starts().keys() >= set(wide), 15, what="every lane being at work again")
    go_on.touch()
    await _ends_well(service, [*ids, *wide], process)


# Everything.


async def test_when_all_servers_and_processes_die_at_once_nothing_is_lost_or_doubled(
    tmp_path: Path,
    own_database: Database,
    own_postgres: PostgresServer,
    own_vhost: Vhost,
    own_broker: RabbitServer,
    fleet: StartFleet,
    rounds: Rounds,
) -> None:
    # Whoever dies in the middle of an attempt may have to do with its death. Other tests say what that costs.
    patient = {"work": {"max_attempts": 100, "max_aborts": 100}}
    service = Service(tmp_path, own_database, own_vhost, fleet, consumers=patient)
    await service.prepare()
    ids: list[str] = []
    for number in range(rounds(1, 5)):
        processes = [await service.start(), await service.start()]
        ids += await _loaded(service, number)
        for process in processes:
            process.kill()
        await asyncio.gather(asyncio.to_thread(own_broker.kill), asyncio.to_thread(own_postgres.kill))
        await asyncio.gather(asyncio.to_thread(own_broker.start), asyncio.to_thread(own_postgres.start))
    last = await service.start()
    await service.settled(60)
    await service.exact(ids)
    await service.stopped(last)
    await service.at_rest()


@pytest.mark.parametrize("first", ["database", "broker"])
async def test_a_process_outlives_the_loss_of_both_servers_whichever_comes_back_first(
    first: str,
    tmp_path: Path,
    own_database: Database,
    own_postgres: PostgresServer,
    own_vhost: Vhost,
    own_broker: RabbitServer,
    fleet: StartFleet,
) -> None:
    service = Service(tmp_path, own_database, own_vhost, fleet, consumers={"work": {"max_attempts": 1}})
    await service.prepare()
    process = await service.start()
    ids = await _loaded(service, 0)
    await asyncio.gather(asyncio.to_thread(own_broker.stop_app), asyncio.to_thread(own_postgres.stop))
    await not_ready(process, within_s=10)
    await alive(process)
    back = [own_postgres.start, own_broker.start_app]
    for start in back if first == "database" else reversed(back):
        await asyncio.to_thread(start)
        await alive(process)
    await process.ready()
    await _ends_well(service, ids, process)
