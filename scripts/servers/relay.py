"""A TCP relay before a server, which breaks the line between a client and that server in one exact way.

Each accepted connection has a connection to the target and two pumps, one per direction. Faults are states of the relay
(`half_open`, `drop`, `delay`, `refuse`) or rules that fire once when a byte pattern passes (`cut_on`, `hold_on`), also
when the pattern arrives in pieces. The relay changes nothing in what it forwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
from types import TracebackType
from typing import Literal, Self

from servers.addresses import address_of, with_address
from servers.processes import free_ports

_CHUNK_BYTES = 65_536
_ANSWER_S = 1.0


class Direction(enum.Enum):
    """Which way bytes travel."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Rule:
    """Something that happens once, when a pattern passes for the n-th time on any connection of a relay.

    `reached` is set at that moment and `connection` is then the connection it happened on. A rule that holds keeps that
    direction of that connection back until `release`.
    """

    def __init__(self, pattern: bytes, direction: Direction, when: Literal["before", "after"], *, cuts: bool, nth: int):
        if not pattern or nth < 1:
            raise ValueError("a rule needs a pattern of at least one byte and an occurrence of at least 1")
        self.pattern = pattern
        self.direction = direction
        self.when = when
        self.cuts = cuts
        self.left = nth
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.connection: Connection | None = None

    def release(self) -> None:
        """Let the bytes flow that this rule holds."""
        self.released.set()


class Connection:
    """One relayed connection. `log` holds what was forwarded in each direction, if the relay keeps logs."""

    def __init__(self, relay: Relay, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.log = {direction: bytearray() for direction in Direction}
        self._relay = relay
        self._client = client
        self._server = server
        self._client_gone = False

    def cut(self) -> None:
        """Reset the connection on both sides."""
        _reset(self._client)
        _reset(self._server)

    def cut_client(self) -> None:
        """Reset the client's side at once; end the server's side when it has answered, or after a second."""
        self._client_gone = True
        _reset(self._client)
        asyncio.get_running_loop().call_later(_ANSWER_S, _end, self._server)

    async def run(self, from_client: asyncio.StreamReader, from_server: asyncio.StreamReader) -> None:
        """Pump both ways until both have ended."""
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(from_client, self._server, Direction.TO_SERVER))
                pumps.create_task(self._pump(from_server, self._client, Direction.TO_CLIENT))
        finally:
            for writer in (self._client, self._server):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction) -> None:
        seen = b""  # the end of what passed before, for patterns that arrive in pieces
        try:
            while chunk := await source.read(_CHUNK_BYTES):
                await self._relay.gate(direction)
                if direction is Direction.TO_CLIENT and self._client_gone:
                    _end(self._server)
                elif not self._relay.drops(direction):
                    await self._pass_on(chunk, seen, sink, direction)
                    seen = (seen + chunk)[-_CHUNK_BYTES:]
            await self._relay.gate(direction)
            if not self._relay.drops(direction):
                _end(sink)
        except OSError:
            await self._relay.gate(direction)
            if not self._client_gone and not self._relay.drops(direction):
                self.cut()

    async def _pass_on(self, chunk: bytes, seen: bytes, sink: asyncio.StreamWriter, direction: Direction) -> None:
        done = 0
        for position, rule in self._relay.firing(direction, seen, chunk):
            await self._forward(chunk[done:position], sink, direction)
            done = position
            rule.connection = self
            rule.reached.set()
            if not rule.cuts:
                await rule.released.wait()
            elif rule.when == "after" and direction is Direction.TO_SERVER:
                return self.cut_client()
            else:
                return self.cut()
        return await self._forward(chunk[done:], sink, direction)

    async def _forward(self, data: bytes, sink: asyncio.StreamWriter, direction: Direction) -> None:
        if not data:
            return
        if self._relay.keeps_logs:
            self.log[direction] += data
        sink.write(data)
        # Until the kernel has it all: a reset that follows must not take it back.
        sink.transport.set_write_buffer_limits(high=0)
        await sink.drain()


class Relay:
    """Listens on a loopback port and relays to `host`:`port`. Use it with `async with`, or `open` and `close`.

    Args:
        host: Address of the server.
        port: Port of the server.
        keeps_logs: Whether each connection keeps the bytes it forwarded.
    """

    def __init__(self, host: str, port: int, *, keeps_logs: bool = False) -> None:
        self.port = free_ports(1)[0]
        self.keeps_logs = keeps_logs
        self.accepted = 0
        self._target = (host, port)
        self._rules: list[Rule] = []
        self._dropped: set[Direction] = set()
        self._delay_s = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Connection | None] = {}

    @classmethod
    def before(cls, url: str, *, keeps_logs: bool = False) -> Relay:
        """Return a relay before the server that a database or AMQP URL names."""
        host, port = address_of(url)
        return cls(host, port, keeps_logs=keeps_logs)

    def url(self, direct: str) -> str:
        """Return a URL of the server changed so that it leads through this relay."""
        return with_address(direct, "127.0.0.1", self.port)

    async def open(self) -> None:
        """Accept connections. Does nothing if it does already."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def close(self) -> None:
        """Accept no more, reset what is open and wait until every task has ended."""
        self.refuse()
        self.cut()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connections(self) -> list[Connection]:
        """The connections that are open now, oldest first."""
        return [connection for connection in self._connections.values() if connection is not None]

    def refuse(self) -> None:
        """Refuse new connections until `open`; those that exist live on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def cut(self) -> None:
        """Reset all connections on both sides."""
        for connection in self.connections:
            connection.cut()

    def half_open(self) -> None:
        """Keep all sockets and forward nothing, not even an end of the other side, until `heal`. Nothing is lost."""
        self._flowing.clear()

    def drop(self, direction: Direction) -> None:
        """Read and throw away what travels in one direction, its end included, until `heal`."""
        self._dropped.add(direction)

    def delay(self, seconds: float) -> None:
        """Hold every chunk of bytes back for at least this time, in both directions; order is kept."""
        self._delay_s = seconds

    def heal(self) -> None:
        """Undo `half_open`, `drop` and `delay`. What was dropped stays lost."""
        self._dropped.clear()
        self._delay_s = 0.0
        self._flowing.set()

    def cut_on(
        self, pattern: bytes, direction: Direction, when: Literal["before", "after"] = "before", *, nth: int = 1
    ) -> Rule:
        """Reset a connection at the moment when `pattern` passes for the n-th time.

        `before`: its receiver does not get the pattern. `after`: it gets it, and all that arrived together with it; a
        server may then still act on it, but its answer goes nowhere.
        """
        return self._add(Rule(pattern, direction, when, cuts=True, nth=nth))

    def hold_on(
        self, pattern: bytes, direction: Direction, when: Literal["before", "after"] = "before", *, nth: int = 1
    ) -> Rule:
        """Hold a direction of a connection back when `pattern` passes for the n-th time, until the rule's `release`."""
        return self._add(Rule(pattern, direction, when, cuts=False, nth=nth))

    async def gate(self, direction: Direction) -> None:
        """Wait out the state of the line; for the pumps."""
        await self._flowing.wait()
        if self._delay_s and not self.drops(direction):
            await asyncio.sleep(self._delay_s)
            await self._flowing.wait()

    def drops(self, direction: Direction) -> bool:
        """Return whether bytes in this direction are thrown away now; for the pumps."""
        return direction in self._dropped

    def firing(self, direction: Direction, seen: bytes, chunk: bytes) -> list[tuple[int, Rule]]:
        """Return the rules that fire in a chunk and how much of it passes before each; for the pumps."""
        fired = []
        for rule in self._rules:
            if rule.direction is not direction or rule.left < 1:
                continue
            tail = seen[len(seen) - min(len(seen), len(rule.pattern) - 1) :]
            window = tail + chunk
            start = window.find(rule.pattern)
            while start >= 0:
                rule.left -= 1
                if rule.left == 0:
                    fired.append((max(0, start - len(tail)) if rule.when == "before" else len(chunk), rule))
                    break
                start = window.find(rule.pattern, start + len(rule.pattern))
        return sorted(fired, key=lambda entry: entry[0])

    def _add(self, rule: Rule) -> Rule:
        self._rules.append(rule)
        return rule

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._connections[task] = None
        task.add_done_callback(self._connections.pop)

    async def _relay(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_server, server = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(client)
            return
        connection = Connection(self, client, server)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        await connection.run(from_client, from_server)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a socket so that its peer gets a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _end(writer: asyncio.StreamWriter) -> None:
    """Send the end of the stream, unless it was sent."""
    if not writer.transport.is_closing() and writer.can_write_eof():
        with contextlib.suppress(OSError):
            writer.write_eof()
