"""The relay that fault tests trust: each way of breaking a line does exactly what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from servers.addresses import address_of, with_address
from servers.relay import Direction, Relay
from tests.support.eventually import eventually


class Echo:
    """A server that keeps what it gets and answers each chunk with the same bytes in capitals."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended = asyncio.Event()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1000):
                self.received += chunk
                writer.write(chunk.upper())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self, size: int) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readexactly(size)

    async def is_reset(self) -> bool:
        try:
            async with asyncio.timeout(5):
                await self.reader.read(1000)
        except ConnectionResetError:
            return True
        return False

    async def hears_nothing(self) -> bool:
        """A short silence is all that can be observed of bytes that never come."""
        try:
            async with asyncio.timeout(0.05):
                return await self.reader.read(1) == b"?"
        except TimeoutError:
            return True


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    await server.open()
    yield server
    server.close()


@pytest_asyncio.fixture
async def relay(echo: Echo) -> AsyncIterator[Relay]:
    async with Relay("127.0.0.1", echo.port, keeps_logs=True) as opened:
        yield opened


@pytest_asyncio.fixture
async def client(relay: Relay) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    yield Client(reader, writer)
    writer.close()


async def test_what_one_side_says_the_other_hears(client: Client, relay: Relay) -> None:
    await client.say(b"hello")

    assert await client.hear(5) == b"HELLO"
    assert relay.connections[0].log[Direction.TO_SERVER] == b"hello"
    assert relay.connections[0].log[Direction.TO_CLIENT] == b"HELLO"


async def test_an_end_of_the_client_reaches_the_server(client: Client, echo: Echo, relay: Relay) -> None:
    await client.say(b"bye")
    await client.hear(3)
    client.writer.close()

    await asyncio.wait_for(echo.ended.wait(), 5)
    await eventually(lambda: not relay.connections)


async def test_a_cut_resets_both_sides(client: Client, echo: Echo, relay: Relay) -> None:
    await client.say(b"hello")
    await client.hear(5)

    relay.cut()

    assert await client.is_reset()
    await asyncio.wait_for(echo.ended.wait(), 5)


async def test_a_half_open_line_is_silent_and_loses_nothing(client: Client, echo: Echo, relay: Relay) -> None:
    await client.say(b"one")
    await client.hear(3)

    relay.half_open()
    await client.say(b"two")
    assert await client.hears_nothing()
    assert echo.received == b"one"

    relay.heal()
    assert await client.hear(3) == b"TWO"


async def test_a_half_open_line_hides_that_the_client_died(client: Client, echo: Echo, relay: Relay) -> None:
    await client.say(b"one")
    await client.hear(3)

    relay.half_open()
    client.writer.transport.abort()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(echo.ended.wait(), 0.05)

    relay.heal()
    await asyncio.wait_for(echo.ended.wait(), 5)


async def test_dropping_towards_the_client_loses_answers_only(client: Client, echo: Echo, relay: Relay) -> None:
    relay.drop(Direction.TO_CLIENT)
    await client.say(b"lost")
    await eventually(lambda: echo.received == b"lost")
    assert await client.hears_nothing()

    relay.heal()
    await client.say(b"found")
    assert await client.hear(5) == b"FOUND"


async def test_a_delay_holds_bytes_back_in_each_direction(client: Client, relay: Relay) -> None:
    loop = asyncio.get_running_loop()
    relay.delay(0.05)
    began = loop.time()

    await client.say(b"slow")
    await client.hear(4)

    assert loop.time() - began >= 0.1


async def test_a_cut_before_a_pattern_keeps_it_from_the_server(client: Client, echo: Echo, relay: Relay) -> None:
    rule = relay.cut_on(b"COMMIT", Direction.TO_SERVER, "before")

    await client.say(b"insert; COMMIT;")

    assert await client.is_reset()
    await asyncio.wait_for(echo.ended.wait(), 5)
    assert rule.reached.is_set()
    assert echo.received == b"insert; "


async def test_a_cut_after_a_pattern_lets_the_server_act_and_hides_its_answer(
    client: Client, echo: Echo, relay: Relay
) -> None:
    relay.cut_on(b"commit", Direction.TO_SERVER, "after")

    await client.say(b"insert; commit;")

    assert await client.is_reset()
    await asyncio.wait_for(echo.ended.wait(), 5)
    assert echo.received == b"insert; commit;"


async def test_a_cut_before_an_answer_leaves_the_server_with_the_work_done(
    client: Client, echo: Echo, relay: Relay
) -> None:
    relay.cut_on(b"COMMIT", Direction.TO_CLIENT, "before")

    await client.say(b"commit")

    assert await client.is_reset()
    assert echo.received == b"commit"


async def test_a_cut_after_an_answer_comes_when_the_client_has_it(client: Client, relay: Relay) -> None:
    relay.cut_on(b"COMMIT", Direction.TO_CLIENT, "after")

    await client.say(b"commit")

    assert await client.hear(6) == b"COMMIT"
    assert await client.is_reset()


async def test_a_pattern_is_found_in_pieces(client: Client, echo: Echo, relay: Relay) -> None:
    relay.cut_on(b"commit", Direction.TO_SERVER, "before")
    await client.say(b"xx com")
    await client.hear(6)

    await client.say(b"mit yy")

    assert await client.is_reset()
    assert echo.received == b"xx com"


@pytest.mark.parametrize("pieces", [[b"ab ab ab"], [b"ab ", b"ab ", b"ab"], [b"a", b"b a", b"b a", b"b"]])
async def test_the_nth_occurrence_fires_and_no_other(
    client: Client, echo: Echo, relay: Relay, pieces: list[bytes]
) -> None:
    rule = relay.hold_on(b"ab", Direction.TO_SERVER, "after", nth=3)

    for piece in pieces[:-1]:
        await client.say(piece)
        await client.hear(len(piece))
        assert not rule.reached.is_set()
    await client.say(pieces[-1])

    await asyncio.wait_for(rule.reached.wait(), 5)
    rule.release()
    await eventually(lambda: bytes(echo.received) == b"".join(pieces))


async def test_a_hold_stops_before_the_pattern_until_it_is_released(client: Client, echo: Echo, relay: Relay) -> None:
    rule = relay.hold_on(b"two", Direction.TO_SERVER, "before")

    await client.say(b"one two three")
    await asyncio.wait_for(rule.reached.wait(), 5)
    assert await client.hear(4) == b"ONE "
    assert echo.received == b"one "

    rule.release()
    assert await client.hear(9) == b"TWO THREE"


async def test_a_held_connection_can_be_cut(client: Client, echo: Echo, relay: Relay) -> None:
    rule = relay.hold_on(b"two", Direction.TO_SERVER, "before")
    await client.say(b"two")
    await asyncio.wait_for(rule.reached.wait(), 5)

    assert rule.connection is not None
    rule.connection.cut()

    assert await client.is_reset()
    await asyncio.wait_for(echo.ended.wait(), 5)
    assert echo.received == b""


async def test_refusing_touches_new_connections_only(client: Client, relay: Relay) -> None:
    relay.refuse()

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", relay.port)
    await client.say(b"still here")
    assert await client.hear(10) == b"STILL HERE"

    await relay.open()
    _, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    await eventually(lambda: len(relay.connections) == 2)
    writer.close()


async def test_a_dead_target_resets_the_client(echo: Echo) -> None:
    echo.close()
    async with Relay("127.0.0.1", echo.port) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await Client(reader, writer).is_reset()


@pytest.mark.parametrize(
    ("url", "relayed"),
    [
        ("postgresql://u:p%40@10.0.0.1:5432/db?sslmode=disable", "postgresql://u:p%40@127.0.0.1:9/db?sslmode=disable"),
        ("amqp://u:p@[::1]:5673/%2F?heartbeat=5", "amqp://u:p@127.0.0.1:9/%2F?heartbeat=5"),
        (
            "postgresql://u@/db?host=/run/pg&port=5433&application_name=x",
            "postgresql://u@127.0.0.1:9/db?application_name=x",
        ),
        ("amqp://broker/", "amqp://127.0.0.1:9/"),
    ],
)
def test_a_url_gets_another_address_and_keeps_the_rest(url: str, relayed: str) -> None:
    assert with_address(url, "127.0.0.1", 9) == relayed


@pytest.mark.parametrize("url", ["postgresql://a:1,b:2/db", "postgresql:///db?host=/run/pg"])
def test_a_url_without_one_tcp_host_has_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="relay"):
        address_of(url)


def test_a_url_without_port_means_the_default_port() -> None:
    assert address_of("amqp://broker/x") == ("broker", 5672)
    assert address_of("postgresql://database/x") == ("database", 5432)
