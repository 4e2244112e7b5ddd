"""The fixtures that every other test against real servers stands on."""

from __future__ import annotations

import asyncpg
import pytest

from servers import QueueCounts, RabbitServer
from tests.support.databases import Database, Databases
from tests.support.eventually import eventually
from tests.support.ledger import INSERT, create_ledger, exactly_one_effect_each
from tests.support.relay import RelayBefore
from tests.support.vhosts import Vhost


async def test_a_database_holds_the_migrated_schema_and_nothing_else(database: Database) -> None:
    tables = await database.fetch("select table_name from information_schema.tables where table_schema = 'inbox'")

    assert {"message", "attempt"} <= {row["table_name"] for row in tables}
    assert await database.fetchval("select count(*) from inbox.message") == 0


async def test_the_role_of_a_database_is_no_superuser_and_owns_it(database: Database) -> None:
    assert await database.fetchval("select not rolsuper from pg_roles where rolname = current_user")
    await database.execute("create table thing ()")


async def test_two_databases_of_one_server_share_nothing(database: Database, databases: Databases) -> None:
    async with databases.database() as other:
        await other.execute("create table only_here ()")

        assert other.name != database.name
        assert await database.fetchval("select to_regclass('only_here')") is None


async def test_a_database_is_dropped_with_sessions_in_it(databases: Databases) -> None:
    async with databases.database() as gone:
        left = await asyncpg.connect(gone.url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await left.fetchval("select 1")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(gone.url)


async def test_terminating_sessions_spares_the_test_itself(database: Database) -> None:
    victim = await database.connect(application_name="victim")
    assert [row["application_name"] for row in await database.sessions()] == ["victim"]

    assert await database.terminate_sessions("victim") == 1

    await eventually(lambda: victim.is_closed())
    assert await database.sessions("victim") == []


async def test_the_ledger_tells_lost_doubled_and_unexpected_effects(database: Database) -> None:
    await create_ledger(database)
    for message_id in ("a", "b", "b", "x"):
        await database.execute(INSERT, message_id, 1, "me")

    with pytest.raises(AssertionError, match=r"1 lost \['c'\], 1 doubled \{'b': 2\}, 1 unexpected \['x'\]"):
        await exactly_one_effect_each(database, ["a", "b", "c"])
    await database.execute(
        "delete from ledger where message_id = 'x' or entry = (select max(entry) from ledger where message_id = 'b')"
    )
    await exactly_one_effect_each(database, ["a", "b"])


async def test_a_virtual_host_starts_empty_and_counts_exactly(vhost: Vhost) -> None:
    assert await vhost.queues() == {}
    await vhost.declare_queue("orders")

    for number in range(5):
        await vhost.publish("orders", b"%d" % number)
    counts = await vhost.counts("orders")
    assert (counts.ready, counts.unacknowledged, counts.total, counts.consumers) == (5, 0, 5, 0)

    channel = await vhost.channel()
    queue = await channel.get_queue("orders", ensure=False)
    taken = await queue.get()
    counts = await vhost.counts("orders")
    assert (counts.ready, counts.unacknowledged, counts.total) == (4, 1, 5)

    await taken.nack(requeue=True)
    await eventually(lambda: _is_ready(vhost, "orders", 5))
    assert sorted(message.body for message in await vhost.drain("orders")) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_classic_queue_is_counted_too(vhost: Vhost) -> None:
    await vhost.declare_queue("old", kind="classic")
    await vhost.publish("old", b"x")

    await eventually(lambda: _is_ready(vhost, "old", 1))


async def test_closing_all_connections_stays_in_its_virtual_host(vhost: Vhost, shared_broker: RabbitServer) -> None:
    channel = await vhost.channel()
    await eventually(lambda: _has_connections(vhost, 1))
    shared_broker.add_vhost(f"{vhost.name}-other")
    other = Vhost(shared_broker, f"{vhost.name}-other")
    other_channel = await other.channel()

    await vhost.close_all_connections()

    await eventually(lambda: channel.is_closed)
    assert not other_channel.is_closed
    await other.close()
    shared_broker.delete_vhost(other.name)
    await vhost.declare_queue("again")


async def test_a_relay_stands_before_database_and_broker(
    database: Database, vhost: Vhost, relay_before: RelayBefore
) -> None:
    before_database = await relay_before(database.url)
    connection = await asyncpg.connect(before_database.url(database.url))
    assert await connection.fetchval("select current_database()") == database.name

    before_database.cut()

    with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
        await connection.fetchval("select 1")
    before_broker = await relay_before(vhost.url)
    vhost.url = before_broker.url(vhost.url)
    await vhost.declare_queue("relayed")
    assert before_broker.accepted == 1


async def _is_ready(vhost: Vhost, queue: str, number: int) -> bool:
    counts: QueueCounts = await vhost.counts(queue)
    return counts.ready == number


async def _has_connections(vhost: Vhost, number: int) -> bool:
    count: int = await vhost.connection_count()
    return count == number
