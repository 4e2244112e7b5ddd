"""Fleet processes: the product as it runs in production, started, watched and ended by a test.

Each runs `tests.support.fleet_main`, its output in a file, its HTTP door on a free port that it says in its own
log. Whatever a test leaves running is killed by process id when the test ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

from servers.processes import Process
from tests.support.command import inbox_fleet
from tests.support.eventually import eventually
from tests.support.forked import fork
from tests.support.servers import CHECKOUT


class FleetProcess:
    """One running fleet process."""

    def __init__(self, child: ForkServerProcess, output: Path) -> None:
        assert child.pid is not None
        self._child = child
        self._output = output
        self._process = Process.of(child.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal, or None while it runs."""
        return self._child.exitcode

    @property
    def output(self) -> str:
        """All that it has written to stdout and stderr so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time that it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return its log events of one name, oldest first."""
        found = []
        for line in self.output.splitlines():
            if f'"{name}"' in line and line.startswith("{") and line.endswith("}"):
                event: dict[str, Any] = json.loads(line)
                if event.get("event") == name:
                    found.append(event)
        return found

    async def get(self, path: str) -> tuple[int, str]:
        """Ask its HTTP door and return status and body; raises AssertionError as long as it does not answer."""
        listening = self.events("http.listening")
        assert listening, f"it does not listen yet:\n{self.output[-2000:]}"
        try:
            async with asyncio.timeout(5.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", listening[-1]["port"])
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read()
                writer.close()
        except (OSError, TimeoutError) as error:
            raise AssertionError(f"its HTTP door does not answer: {error!r}") from error
        head, _, body = answer.decode().partition("\r\n\r\n")
        assert head, "its HTTP door closed without an answer"
        return int(head.split()[1]), body

    async def ready(self, within_s: float = 20.0) -> None:
        """Wait until /readyz says so; fails at once, with the end of its output, if it exits."""

        async def is_ready() -> bool:
            if self.exit_code is not None:
                raise RuntimeError(f"it exited with {self.exit_code} before it was ready:\n{self.output[-4000:]}")
            status, _ = await self.get("/readyz")
            return status == 200

        await eventually(is_ready, within_s, what="a fleet process becoming ready", every_s=0.05)

    async def exited(self, code: int, within_s: float = 20.0) -> None:
        """Wait until it has exited and assert its exit code; a signal's number is negative, as in `-signal.SIGKILL`."""
        await eventually(lambda: self.exit_code is not None, within_s, what="the end of a fleet process")
        assert self.exit_code == code, f"exit code {self.exit_code} instead of {code}:\n{self.output[-4000:]}"

    async def frozen(self, within_s: float = 20.0) -> None:
        """Wait until it is stopped, by `freeze` or by a `freeze_at` of its own."""
        await eventually(self._process.stopped, within_s, what="the stop of a fleet process")

    def terminate(self) -> None:
        """Send SIGTERM: it shall drain."""
        self._process.send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.send(signal.SIGKILL)

    def freeze(self) -> None:
        """Send SIGSTOP."""
        self._process.send(signal.SIGSTOP)

    def proceed(self) -> None:
        """Send SIGCONT."""
        self._process.send(signal.SIGCONT)

    def end(self) -> None:
        """Kill it if it still runs, reap it, and show its output for a test that failed."""
        self._child.kill()
        self._child.join(10)
        print(f"--- fleet process {self.pid}, exit code {self.exit_code}:\n{self.output[-8000:]}")


class StartFleet(Protocol):
    """What the fixture `fleet` gives: starts a fleet process."""

    def __call__(
        self,
        config: Path,
        *,
        database_url: str,
        amqp_url: str,
        kill_at: str | None = None,
        freeze_at: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> FleetProcess:
        """Start a process with a configuration file; return without waiting for it.

        Args:
            config: The TOML file (see `tests.support.configs.write_config`).
            database_url: Where its database is, perhaps through a relay.
            amqp_url: Where its broker is, perhaps through a relay.
            kill_at: "POINT" or "POINT:NTH" at which it kills itself.
            freeze_at: The same for a stop, from which `proceed` wakes it.
            environment: Further variables, for the handlers.
        """


def start_fleet(
    output: Path,
    config: Path,
    *,
    database_url: str,
    amqp_url: str,
    kill_at: str | None = None,
    freeze_at: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> FleetProcess:
    """Start a fleet process that writes to `output`; for the other arguments see `StartFleet`."""
    traps = [f"--kill-at={kill_at}"] if kill_at is not None else []
    traps += [f"--freeze-at={freeze_at}"] if freeze_at is not None else []
    variables = {**_variables(database_url, amqp_url), **(environment or {})}
    with output.open("wb") as file, Path(os.devnull).open("rb") as nothing:
        child = fork(
            "tests.support.fleet_main",
            [*traps, "--config", str(config)],
            folder=CHECKOUT,
            environment=variables,
            stdin=nothing.fileno(),
            stdout=file.fileno(),
            stderr=file.fileno(),
        )
    return FleetProcess(child, output)


async def command(config: Path, *arguments: str, database_url: str, amqp_url: str, deadline_s: float = 60.0) -> str:
    """Run another command of `inbox-fleet` to its end and return what it wrote; raises AssertionError if it fails."""
    finished = await inbox_fleet(
        *(*arguments, "--config", str(config)),
        folder=CHECKOUT,
        environ=_variables(database_url, amqp_url),
        within_s=deadline_s,
    )
    written = finished.stdout + finished.stderr
    assert finished.code == 0, f"{' '.join(arguments)} exited with {finished.code}:\n{written}"
    return written


def _variables(database_url: str, amqp_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "AMQP_URL": amqp_url,
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONUNBUFFERED": "1",
    }
