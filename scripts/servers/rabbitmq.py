"""A private RabbitMQ node: own name, ports, epmd, cookie and folders, on the loopback interface only.

A node is asked through its control door (see rabbit_control.erl), which answers in a millisecond; `rabbitmqctl` is
there for what has no expression. The default epmd of the machine may serve others, so a node brings its own and ends
that one alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from servers.processes import Account, Process, Servant, ServerError, free_ports, tail, wait_until
from servers.rabbit_install import require_programs

ROLE = "inbox"
_MEMORY_LIMIT = "1GiB"
_CONFIG = """
listeners.tcp.1 = 127.0.0.1:{port}
default_user = {role}
default_pass = {password}
default_user_tags.administrator = true
vm_memory_high_watermark.absolute = {memory_limit}
disk_free_limit.absolute = 64MB
raft.wal_max_size_bytes = 67108864
log.file.level = info
"""
_ADVANCED = "[{rabbit, [{quorum_tick_interval, 1000}]}].\n"
# Two schedulers that sleep when idle: nodes share few cores with the tests that drive them.
_VM_ARGUMENTS = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
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


class RabbitServer:
    """One private RabbitMQ node below `directory`.

    Constructing it starts nothing: `create` lays out the folders, `start` and `stop` may alternate, `attach` finds a
    node that another process created. All methods block; those that talk through the control door take milliseconds,
    the others seconds, which a test spends in `asyncio.to_thread`.
    """

    def __init__(self, directory: Path, *, programs: Path, ports: dict[str, int], password: str, token: str) -> None:
        self.directory = directory
        self.programs = programs
        self.port = ports["amqp"]
        self._ports = ports
        self._password = password
        self._token = token
        self._account = Account.unprivileged()
        self._child: Servant | None = None

    @classmethod
    def create(cls, directory: Path) -> RabbitServer:
        """Lay out a node below a new `directory` and return it, not started; raises ServerError without RabbitMQ."""
        programs = require_programs()
        account = Account.unprivileged()
        account.make_directory(directory)
        for name in ("home", "data", "logs", "config"):
            account.make_directory(directory / name)
        ports = dict(zip(("amqp", "distribution", "epmd", "control"), free_ports(4), strict=True))
        password, token = secrets.token_hex(8), secrets.token_hex(16)
        configuration = _CONFIG.format(port=ports["amqp"], role=ROLE, password=password, memory_limit=_MEMORY_LIMIT)
        account.write(directory / "rabbitmq.conf", configuration)
        account.write(directory / "advanced.config", _ADVANCED)
        account.write(directory / "enabled_plugins", "[].\n")
        account.write(directory / "environment.conf", "")
        account.write(
            directory / "control.erl", Path(__file__).with_name("rabbit_control.erl").read_text(encoding="utf-8")
        )
        facts = {"programs": str(programs), "ports": ports, "password": password, "token": token}
        account.write(directory / "server.json", json.dumps(facts))
        return cls(directory, programs=programs, ports=ports, password=password, token=token)

    @classmethod
    def attach(cls, directory: Path) -> RabbitServer:
        """Return the node that was created below `directory`; raises ServerError if there is none."""
        try:
            facts = json.loads((directory / "server.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ServerError(f"no RabbitMQ node was created in {directory}") from None
        return cls(
            directory,
            programs=Path(facts["programs"]),
            ports=facts["ports"],
            password=facts["password"],
            token=facts["token"],
        )

    def url(self, vhost: str = "/") -> str:
        """Return the AMQP URL of a virtual host."""
        return f"amqp://{ROLE}:{self._password}@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    @property
    def node(self) -> str:
        """The node's name."""
        return f"inbox-{self.port}@localhost"

    @property
    def log(self) -> Path:
        """The broker's log file; what stands before the broker's own logging is in console.log beside it."""
        return self.directory / "logs" / f"{self.node}.log"

    @property
    def process(self) -> Process | None:
        """The leader of the node's process group, or None if the node does not run."""
        if self._child is not None:
            self._child.poll()
        try:
            pid, started = (int(part) for part in (self.directory / "process").read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return None
        process = Process(pid=pid, started=started)
        return process if process.alive() else None

    def start(self, *, deadline_s: float = 90.0) -> None:
        """Start the node and return when the broker accepts clients. Does nothing if it runs.

        Raises ServerError with the end of the logs if it does not come up within `deadline_s` seconds.
        """
        if self.process is not None:
            return
        self._child = self._account.start(
            [self.programs / "rabbitmq-server"],
            environment=self._environment(),
            directory=self.directory,
            log=self.directory / "console.log",
        )
        process = Process.of(self._child.pid)
        (self.directory / "process").write_text(f"{process.pid} {process.started}", encoding="utf-8")
        if (
            not wait_until(lambda: self.process is None or self.is_ready(), deadline_s=deadline_s)
            or self.process is None
        ):
            self.kill()
            logs = f"{tail(self.directory / 'console.log')}\n{tail(self.log)}"
            raise ServerError(f"RabbitMQ in {self.directory} did not start; its logs end with:\n{logs}")

    def is_ready(self) -> bool:
        """Return whether the broker has opened its port for clients."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2.0):
                return self.eval("rabbit:is_running().") == "true"
        except (OSError, ServerError):
            return False

    def stop(self, *, deadline_s: float = 60.0) -> None:
        """End the node in order (SIGTERM) and return when it is gone."""
        process = self.process
        if process is None:
            return
        self.proceed()
        process.send(signal.SIGTERM)  # the start script passes it on and waits for the virtual machine
        if not wait_until(lambda: self.process is None, deadline_s=deadline_s):
            raise ServerError(f"RabbitMQ in {self.directory} (pid {process.pid}) did not stop within {deadline_s:g} s")

    def restart(self) -> None:
        """Stop and start the node."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """SIGKILL the node and return when it is gone; a later `start` recovers from what is on disk.

        Its registry of quorum queues is written out first: the broker saves it every half second only, and a queue
        declared just before a SIGKILL comes back without a leader and never answers again.
        """
        process = self.process
        if process is None:
            return
        with contextlib.suppress(ServerError):  # a frozen or half-started node has nothing new to save
            self.eval("[dets:sync(Table) || Table <- dets:all()].", timeout_s=2.0)
        family = [process, *process.children()]
        self._signal_group(process, signal.SIGKILL)
        if not wait_until(
            lambda: self.process is None and not any(member.alive() for member in family), deadline_s=10.0
        ):
            raise ServerError(f"RabbitMQ in {self.directory} survived SIGKILL")

    def freeze(self) -> None:
        """SIGSTOP the node: connections stay open and nothing answers."""
        if (process := self.process) is not None:
            self._signal_group(process, signal.SIGSTOP)

    def proceed(self) -> None:
        """SIGCONT what `freeze` stopped."""
        if (process := self.process) is not None:
            self._signal_group(process, signal.SIGCONT)

    def end(self) -> None:
        """Stop the node and its own port mapper, which outlives every stop of the node."""
        self.stop()
        if (epmd := shutil.which("epmd")) is not None:
            self._account.run(
                [epmd, "-kill"], environment=self._environment(), directory=self.directory, deadline_s=10.0
            )

    def eval(self, expression: str, *, timeout_s: float = 30.0) -> str:
        """Evaluate an Erlang expression in the node and return its value as text, or as JSON if it is `{json, Term}`.

        Raises ServerError if the node cannot be reached or the expression fails.
        """
        request = self._token.encode() + expression.strip().encode()
        try:
            with socket.create_connection(("127.0.0.1", self._ports["control"]), timeout=timeout_s) as door:
                door.sendall(struct.pack("!I", len(request)) + request)
                answer = _receive(door, struct.unpack("!I", _receive(door, 4))[0])
        except OSError as error:
            raise ServerError(f"RabbitMQ in {self.directory} does not answer: {error}") from error
        if answer[:2] != b"ok":
            raise ServerError(f"RabbitMQ refused {expression.strip()[:200]!r}: {answer[2:].decode()[:2000]}")
        return answer[2:].decode()

    def rabbitmqctl(self, *arguments: str, deadline_s: float = 60.0) -> str:
        """Run rabbitmqctl against this node and return its output; raises ServerError if it fails."""
        finished = self._account.run(
            [self.programs / "rabbitmqctl", "-n", self.node, *arguments],
            environment=self._environment(),
            directory=self.directory,
            deadline_s=deadline_s,
        )
        if finished.returncode != 0:
            raise ServerError(
                f"rabbitmqctl {' '.join(arguments)} failed ({finished.returncode}):\n{finished.stdout[-2000:]}"
            )
        return finished.stdout

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
        return int(self.eval(f"length(rabbit_connection_tracking:list({_binary(vhost)}))."))

    def close_all_connections(self, reason: str, *, vhost: str | None = None) -> None:
        """Close all client connections, or those of one virtual host, with connection-forced and this reason."""
        if vhost is None:
            connections = "rabbit_networking:connections()"
        else:
            tracked = f"rabbit_connection_tracking:list({_binary(vhost)})"
            connections = f"[Field || Tracked <- {tracked}, Field <- tuple_to_list(Tracked), is_pid(Field)]"
        self.eval(f"[rabbit_networking:close_connection(Pid, {_binary(reason)}) || Pid <- {connections}].")

    def set_vm_memory_high_watermark(self, fraction: float | None) -> None:
        """Set the share of memory at which publishers are blocked: 0 raises the alarm, None is the node's own limit.

        Returns when the alarm is raised, or over.
        """
        limit = f'{{absolute, "{_MEMORY_LIMIT}"}}' if fraction is None else repr(float(fraction))
        self.eval(f"vm_memory_monitor:set_vm_memory_high_watermark({limit}).")
        if fraction is None or fraction == 0:
            raised = str(fraction == 0).lower()
            if not wait_until(lambda: self._has_memory_alarm() == raised, deadline_s=10.0):
                raise ServerError(f"RabbitMQ in {self.directory} did not set its memory alarm to {raised}")

    def _has_memory_alarm(self) -> str:
        return self.eval("lists:any(fun({{_, memory, _}, _}) -> true; (_) -> false end, rabbit_alarm:get_alarms()).")

    def _signal_group(self, process: Process, number: signal.Signals) -> None:
        if process.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _environment(self) -> dict[str, str]:
        """The node's whole environment: nothing of the caller's may point it at another node's files."""
        here = self.directory
        return {
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(here / "home"),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_PORT": str(self._ports["amqp"]),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._ports["distribution"]),
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "logs"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(here / "config"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(here / "environment.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_VM_ARGUMENTS} -run file eval {here / 'control.erl'}",
            "RABBITMQ_CTL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
            "INBOX_CONTROL_PORT": str(self._ports["control"]),
            "INBOX_CONTROL_TOKEN": self._token,
        }


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
