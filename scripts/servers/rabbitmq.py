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
from pathlib import Path
from urllib.parse import quote

from servers.processes import Account, Process, Servant, ServerError, free_ports, tail, wait_until
from servers.rabbit_control import MEMORY_LIMIT, ROLE, RabbitControl
from servers.rabbit_install import require_programs

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


class RabbitServer(RabbitControl):
    """One private RabbitMQ node below `directory`.

    Constructing it starts nothing: `create` lays out the folders, `start` and `stop` may alternate, `attach` finds a
    node that another process created. All methods block; those that talk through the control door take milliseconds,
    the others seconds, which a test spends in `asyncio.to_thread`.
    """

    def __init__(self, directory: Path, *, programs: Path, ports: dict[str, int], password: str, token: str) -> None:
        super().__init__(directory, port=ports["control"], token=token)
        self.programs = programs
        self.port = ports["amqp"]
        self._ports = ports
        self._password = password
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
        configuration = _CONFIG.format(port=ports["amqp"], role=ROLE, password=password, memory_limit=MEMORY_LIMIT)
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
            "INBOX_CONTROL_TOKEN": self._control_token,
        }
