"""Connecting to a real broker: what each way of failing is called, and that no wait is without an end."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiormq.exceptions import AMQPConnectionError

from consumers.broker_faults import NOT_FOUND
from consumers.connection import Endpoint, connect
from consumers.errors import BrokerUnavailable, ChannelLost
from servers import RabbitServer
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.relay import RelayBefore
from tests.support.vhosts import Vhost

PASSWORD = "s3cret-word"


async def refused(url: str, **options: float) -> BrokerUnavailable:
    with pytest.raises(BrokerUnavailable) as error:
        await connect(Endpoint(url=url, name="tests", **options))
    assert PASSWORD not in str(error.value)
    return error.value


def test_an_endpoint_does_not_show_its_url() -> None:
    assert PASSWORD not in repr(Endpoint(url=f"amqp://user:{PASSWORD}@host/", name="tests"))


async def test_a_connection_knows_the_broker_and_is_seen_there_by_its_name(
    vhost: Vhost, shared_broker: RabbitServer
) -> None:
    connection = await connect(Endpoint(url=vhost.url, name="billing.invoices"))
    try:
        assert connection.server_version.split(".")[0].isdigit()
        assert connection.frame_max == 131_072
        names = await asyncio.to_thread(
            shared_broker.eval, "rabbit_networking:connection_info_all([vhost, client_properties])."
        )
        assert "billing.invoices" in names
    finally:
        await connection.close()
    await eventually(lambda: _is_alone(vhost))


async def test_a_port_where_nothing_listens_is_named(vhost: Vhost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    error = await refused(f"amqp://user:{PASSWORD}@127.0.0.1:{port}/")

    assert f"127.0.0.1:{port}" in str(error)
    assert "nothing listens there" in error.hint


async def test_a_wrong_password_is_named(vhost: Vhost) -> None:
    account = vhost.url.split("//")[1].split("@")[0]

    error = await refused(vhost.url.replace(account, f"inbox:{PASSWORD}"))

    assert "refused the user or the password" in error.hint
    assert "ACCESS_REFUSED" in error.problem


async def test_a_missing_virtual_host_is_named(shared_broker: RabbitServer) -> None:
    error = await refused(shared_broker.url("no/such vhost"))

    assert "the virtual host 'no/such vhost' does not exist" in error.hint


async def test_a_host_that_cannot_be_resolved_is_named() -> None:
    error = await refused(f"amqp://user:{PASSWORD}@no-such-host.invalid/")

    assert "cannot be resolved" in error.hint


@pytest.mark.parametrize("url", [f"amqp://user:{PASSWORD}@host:port/", f"amqp://user:{PASSWORD}#@host/", PASSWORD])
async def test_a_url_that_cannot_be_read_is_refused_without_showing_it(url: str) -> None:
    error = await refused(url)

    assert "its URL cannot be read" in error.problem
    assert error.__cause__ is None


async def test_a_server_that_says_nothing_is_given_up_in_time(vhost: Vhost, relay_before: RelayBefore) -> None:
    relay = await relay_before(vhost.url)
    relay.half_open()

    error = await refused(relay.url(vhost.url), connect_timeout_s=0.2)

    assert "does not answer" in error.hint


async def test_what_is_no_broker_is_named(relay_before: RelayBefore) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)  # closing with something unread would be a reset
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]

        error = await refused(f"amqp://user:{PASSWORD}@127.0.0.1:{port}/", connect_timeout_s=2.0)

    assert error.action == "connect"
    assert "without an answer in AMQP 0-9-1" in error.problem


async def test_a_database_server_is_said_to_be_no_broker(database: Database) -> None:
    error = await refused(database.url.replace("postgresql://", "amqp://"))

    assert "without an answer in AMQP 0-9-1" in error.problem
    assert "PostgreSQL" in error.hint


async def test_a_loss_is_told_at_once_with_its_reason(vhost: Vhost) -> None:
    connection = await connect(Endpoint(url=vhost.url, name="tests"))
    lost = asyncio.Event()
    connection.on_loss(lost.set)
    assert not connection.is_lost

    await vhost.close_all_connections("because of the test")

    async with asyncio.timeout(5.0):
        await lost.wait()
    assert connection.loss is not None
    assert "320 CONNECTION_FORCED - because of the test" in str(connection.loss)
    again = asyncio.Event()
    connection.on_loss(again.set)
    assert again.is_set()
    await connection.close()


async def test_an_answer_that_does_not_come_costs_the_channel_and_not_the_task(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    relay = await relay_before(vhost.url)
    connection = await connect(Endpoint(url=relay.url(vhost.url), name="tests"))
    channel = await connection.open_channel()
    relay.half_open()

    with pytest.raises(ChannelLost, match="cannot look: no answer in time"):
        await connection.answer(channel.queue_declare("orders", passive=True), action="look", within_s=0.1)

    await connection.close()


async def test_the_brokers_no_is_told_by_its_code_and_leaves_the_connection(vhost: Vhost) -> None:
    connection = await connect(Endpoint(url=vhost.url, name="tests"))
    channel = await connection.open_channel()

    with pytest.raises(ChannelLost) as lost:
        await connection.answer(channel.queue_declare("missing", passive=True), action="look")

    assert lost.value.code == NOT_FOUND
    assert not connection.is_lost
    assert (await connection.open_channel()).number
    await connection.close()


async def test_a_wait_that_ends_because_we_close_is_a_lost_channel_and_no_shutdown(
    vhost: Vhost, relay_before: RelayBefore
) -> None:
    relay = await relay_before(vhost.url)
    connection = await connect(Endpoint(url=relay.url(vhost.url), name="tests"))
    channel = await connection.open_channel()
    relay.half_open()
    asking = connection.answer(channel.queue_declare("orders", passive=True), action="look", within_s=30.0)
    waiting = asyncio.ensure_future(asking)
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()

    await connection.close()

    with pytest.raises(ChannelLost):
        await waiting


async def test_a_shutdown_passes_through_a_wait(vhost: Vhost, relay_before: RelayBefore) -> None:
    relay = await relay_before(vhost.url)
    connection = await connect(Endpoint(url=relay.url(vhost.url), name="tests"))
    channel = await connection.open_channel()
    relay.half_open()
    asking = connection.answer(channel.queue_declare("orders", passive=True), action="look", within_s=30.0)
    waiting = asyncio.ensure_future(asking)
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    await connection.close()


async def test_a_shutdown_that_the_client_turns_into_the_error_of_a_loss_is_still_a_shutdown(vhost: Vhost) -> None:
    connection = await connect(Endpoint(url=vhost.url, name="tests"))

    async def turned() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            raise AMQPConnectionError("the connection is lost") from cancelled

    waiting = asyncio.ensure_future(connection.answer(turned(), action="look"))
    await asyncio.wait([waiting], timeout=0.01)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    await connection.close()


async def test_closing_a_line_that_is_half_open_ends_in_time(vhost: Vhost, relay_before: RelayBefore) -> None:
    relay = await relay_before(vhost.url)
    connection = await connect(Endpoint(url=relay.url(vhost.url), name="tests"))
    channel = await connection.open_channel()
    relay.half_open()
    began = asyncio.get_running_loop().time()

    await connection.close_channel(channel)
    await connection.close()

    assert asyncio.get_running_loop().time() - began < 6.0


async def _is_alone(vhost: Vhost) -> bool:
    return await vhost.connection_count() == 0
