"""The servers that fault tests may stop, kill, freeze and alarm, and that come back for the next test."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from servers import PostgresServer, RabbitServer
from servers.postgres import StopMode
from tests.support.databases import Database
from tests.support.vhosts import Vhost


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restarted_database_keeps_what_was_committed(
    own_postgres: PostgresServer, own_database: Database, mode: StopMode
) -> None:
    await own_database.execute("create table kept (number int)")
    await own_database.execute("insert into kept values (1)")

    await asyncio.to_thread(own_postgres.restart, mode)

    assert await own_database.fetchval("select number from kept") == 1


async def test_a_killed_database_keeps_what_was_committed(own_postgres: PostgresServer, own_database: Database) -> None:
    await own_database.execute("create table kept (number int)")

    await asyncio.to_thread(own_postgres.kill)
    with pytest.raises(OSError):
        await asyncpg.connect(own_database.url)
    await asyncio.to_thread(own_postgres.start)

    assert await own_database.fetchval("select count(*) from kept") == 0


async def test_a_frozen_database_is_silent_until_it_proceeds(
    own_postgres: PostgresServer, own_database: Database
) -> None:
    assert await own_database.fetchval("select 1") == 1
    own_postgres.freeze()
    asking = asyncio.create_task(own_database.fetchval("select 2"))
    finished, _ = await asyncio.wait([asking], timeout=0.1)
    assert not finished

    own_postgres.proceed()

    assert await asyncio.wait_for(asking, 5) == 2


async def test_a_database_left_down_by_the_test_before_is_up(own_postgres: PostgresServer) -> None:
    own_postgres.stop()


async def test_the_next_test_finds_the_database_up(own_database: Database) -> None:
    assert await own_database.fetchval("select 1") == 1


@pytest.mark.parametrize("way", ["restart", "kill", "stop_app"])
async def test_a_broker_that_comes_back_has_its_messages(own_broker: RabbitServer, own_vhost: Vhost, way: str) -> None:
    await own_vhost.declare_queue("orders")
    await own_vhost.publish("orders", b"kept")

    match way:
        case "restart":
            await asyncio.to_thread(own_broker.restart)
        case "kill":
            await asyncio.to_thread(own_broker.kill)
            await asyncio.to_thread(own_broker.start)
        case _:
            await asyncio.to_thread(own_broker.stop_app)
            assert not own_broker.is_ready()
            await asyncio.to_thread(own_broker.start_app)

    assert [message.body for message in await own_vhost.drain("orders")] == [b"kept"]


async def test_a_memory_alarm_blocks_publishers_until_it_ends(own_broker: RabbitServer, own_vhost: Vhost) -> None:
    await own_vhost.declare_queue("orders")
    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, 0)
    publishing = asyncio.create_task(own_vhost.publish("orders", b"blocked"))
    finished, _ = await asyncio.wait([publishing], timeout=0.5)
    assert not finished

    await asyncio.to_thread(own_broker.set_vm_memory_high_watermark, None)

    await asyncio.wait_for(publishing, 10)
    assert (await own_vhost.counts("orders")).ready == 1


async def test_a_frozen_broker_comes_back_for_the_next_test(own_broker: RabbitServer) -> None:
    own_broker.freeze()


async def test_the_next_test_finds_the_broker_up(own_vhost: Vhost) -> None:
    await own_vhost.declare_queue("orders")
    assert (await own_vhost.counts("orders")).total == 0
