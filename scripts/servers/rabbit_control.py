"""What a private RabbitMQ node is asked and told while it runs, through its control door (see rabbit_control.erl).

The door answers in a millisecond, where `rabbitmqctl` takes half a second, and queue counts come from the queue's
leader, where the broker's own listings are seconds old.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from servers.processes import ServerError, wait_until

ROLE = "inbox"
MEMORY_LIMIT = "1GiB"
_LIST_QUEUES = """
Counts = fun(Q) ->
    case amqqueue:get_type(Q) of
        rabbit_quorum_queue ->
            Ask = fun(Query) -> {ok, {_, Answer}, _} = ra:leader_query(amqqueue:get_pid(Q), Query), Answer end,
            {Ready, Consumers} = Ask(fun rabbit_fifo:query_stat/1),
            Unacknowledged = Ask(fun rabbit_fifo:query_messages_checked_out/1),
            {Ready, Unacknowledged, Ask(fun rabbit_fifo:query_messages_total/1), Consumers};
        _ ->
            [{_, R}, {_, U}, {_, T}, {_, C}] =
                rabbit_amqqueue:info(Q, [messages_ready, messages_unacknowledged, messages, consumers]),
            {R, U, T, C}
    end
end,
{json, [begin
    {resource, _, queue, Name} = amqqueue:get_name(Q),
    {Ready, Unacknowledged, Total, Consumers} = Counts(Q),
    #{name => Name, ready => Ready, unacknowledged => Unacknowledged, total => Total, consumers => Consumers}
end || Q <- rabbit_amqqueue:list(%s)]}.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """What one queue holds, asked from its leader and so exact at that moment.

    `total` may exceed ready + unacknowledged: messages on their way through an at-least-once dead-lettering count too.
    """

    name: str
    ready: int
    unacknowledged: int
    total: int
    consumers: int


class RabbitControl:
    """A node's control door, reached at a port of the loopback interface with a token."""

    def __init__(self, directory: Path, *, port: int, token: str) -> None:
        self.directory = directory
        self._control_port = port
        self._control_token = token

    def eval(self, expression: str, *, timeout_s: float = 30.0) -> str:
        """Evaluate an Erlang expression in the node and return its value as text, or as JSON if it is `{json, Term}`.

        Raises ServerError if the node cannot be reached or the expression fails.
        """
        request = self._control_token.encode() + expression.strip().encode()
        try:
            with socket.create_connection(("127.0.0.1", self._control_port), timeout=timeout_s) as door:
                door.sendall(struct.pack("!I", len(request)) + request)
                answer = _receive(door, struct.unpack("!I", _receive(door, 4))[0])
        except OSError as error:
            raise ServerError(f"RabbitMQ in {self.directory} does not answer: {error}") from error
        if answer[:2] != b"ok":
            raise ServerError(f"RabbitMQ refused {expression.strip()[:200]!r}: {answer[2:].decode()[:2000]}")
        return answer[2:].decode()

    def stop_app(self) -> None:
        """Stop the broker but not its virtual machine; clients lose their connections and find the port closed."""
        self.eval("rabbit:stop().", timeout_s=60.0)

    def start_app(self) -> None:
        """Start the broker that `stop_app` stopped, and return when it accepts clients."""
        self.eval("rabbit:start().", timeout_s=60.0)

    def add_vhost(self, name: str) -> None:
        """Create a virtual host that the node's user may do everything in."""
        vhost, role = _binary(name), _binary(ROLE)
        everything = _binary(".*")
        self.eval(
            f'ok = rabbit_vhost:add({vhost}, <<"test">>), ok = rabbit_auth_backend_internal:set_permissions('
            f'{role}, {vhost}, {everything}, {everything}, {everything}, <<"test">>).'
        )

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with all its queues; its connections are closed. Does nothing if there is none."""
        vhost = _binary(name)
        self.eval(
            f'case rabbit_vhost:exists({vhost}) of true -> rabbit_vhost:delete({vhost}, <<"test">>); false -> ok end.'
        )

    def list_queues(self, vhost: str = "/") -> dict[str, QueueCounts]:
        """Return the counts of every queue of a virtual host by name."""
        rows = json.loads(self.eval(_LIST_QUEUES % _binary(vhost)))
        return {row["name"]: QueueCounts(**row) for row in rows}

    def connection_count(self, vhost: str) -> int:
        """Return the number of client connections to a virtual host."""
        return int(self.eval(f"length({_connections_of(vhost)})."))

    def close_all_connections(self, reason: str, *, vhost: str | None = None) -> None:
        """Close all client connections, or those of one virtual host, with connection-forced and this reason."""
        connections = "rabbit_networking:connections()" if vhost is None else _connections_of(vhost)
        self.eval(f"[rabbit_networking:close_connection(Pid, {_binary(reason)}) || Pid <- {connections}].")

    def set_vm_memory_high_watermark(self, fraction: float | None) -> None:
        """Set the share of memory at which publishers are blocked: 0 raises the alarm, None is the node's own limit.

        Returns when the alarm is raised, or over.
        """
        limit = f'{{absolute, "{MEMORY_LIMIT}"}}' if fraction is None else repr(float(fraction))
        self.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({limit}).")
        if fraction is None or fraction == 0:
            raised = str(fraction == 0).lower()
            if not wait_until(lambda: self._has_memory_alarm() == raised, deadline_s=10.0):
                raise ServerError(f"RabbitMQ in {self.directory} did not set its memory alarm to {raised}")

    def _has_memory_alarm(self) -> str:
        return self.eval("lists:any(fun({{_, memory, _}, _}) -> true; (_) -> false end, rabbit_alarm:get_alarms()).")


def _connections_of(vhost: str) -> str:
    """Return an Erlang expression for the connections of a virtual host.

    Each reader is asked: the broker's own list by virtual host lags behind, and misses the newest connections.
    """
    asked = f"(catch rabbit_networking:connection_info(Pid, [vhost])) =:= [{{vhost, {_binary(vhost)}}}]"
    return f"[Pid || Pid <- rabbit_networking:connections(), {asked}]"


def _binary(text: str) -> str:
    """Return an Erlang binary literal for any text."""
    return f"<<{','.join(str(byte) for byte in text.encode())}>>"


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the node closed the control connection")
        received += part
    return bytes(received)
