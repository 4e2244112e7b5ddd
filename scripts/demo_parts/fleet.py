"""The fleet's two processes as the demo sees them: started, watched, killed, stopped; and the commands before them.

A process that ends without being asked to ends the demo, with the end of its log.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from deadlines import RunFailed
from demo_parts.witness import WITNESS_VARIABLE

CHECKOUT = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "consumers.cli")
_COMMAND_S = 30.0


class FleetProcess:
    """One process of the fleet. It may be started again after it was killed; its log goes on.

    Args:
        name: How the demo calls it.
        command: What is run.
        environment: Its whole environment.
        log: The file that its output is appended to.
    """

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command, self._environment = command, environment
        self._process: asyncio.subprocess.Process | None = None
        self._meant_to_end = False

    async def run(self) -> None:
        """Start it and return when it has ended as it was told to. Raises RunFailed if it ends by itself."""
        self._meant_to_end = False
        with self.log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal is for the demo, which then stops it in order.
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                cwd=CHECKOUT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        code = await self._process.wait()
        if not self._meant_to_end:
            raise RunFailed(
                f"{self.name} ended by itself with exit code {code}; its log ends with:\n{self.last_lines()}"
            )

    @property
    def pid(self) -> int | None:
        """Its process id, or None before the first start."""
        return None if self._process is None else self._process.pid

    def last_lines(self, number: int = 25) -> str:
        """Return the end of its log."""
        if not self.log.exists():
            return "(nothing)"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-number:])

    async def kill(self) -> None:
        """SIGKILL it, and return when it is gone."""
        if self._process is not None:
            self._meant_to_end = True
            self._send(signal.SIGKILL)
            await self._process.wait()

    async def stop(self, *, deadline_s: float) -> int:
        """SIGTERM it and return its exit code. Raises RunFailed if it takes longer than `deadline_s` seconds."""
        assert self._process is not None, "it was started"
        self._meant_to_end = True
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._process.wait()
        except TimeoutError:
            raise RunFailed(
                f"waited {deadline_s:g} s in vain for {self.name} to stop after SIGTERM; its log ends with:\n"
                f"{self.last_lines()}"
            ) from None

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


class Fleet:
    """The configuration of one run of the demo, and what is started with it.

    Args:
        directory: Where configuration and logs are written.
        service: The service's name; its sessions and connections are named after it.
        queue: The work queue.
        database_url: The demo's database.
        amqp_url: The demo's broker.
    """

    def __init__(self, directory: Path, *, service: str, queue: str, database_url: str, amqp_url: str) -> None:
        self._config = directory / "fleet.toml"
        template = Template(Path(__file__).with_name("fleet.toml").read_text(encoding="utf-8"))
        self._config.write_text(template.substitute(service=service, queue=queue), encoding="utf-8")
        inherited = os.environ.get("PYTHONPATH")
        folders = [str(CHECKOUT / "scripts"), str(CHECKOUT / "examples"), *([inherited] if inherited else [])]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(folders),
            "PYTHONUNBUFFERED": "1",
            "DATABASE_URL": database_url,
            "AMQP_URL": amqp_url,
            WITNESS_VARIABLE: str(directory),
        }
        command = [*_COMMAND, "run", "--config", str(self._config)]
        self.processes = [
            FleetProcess(f"process {number}", command, self._environment, directory / f"process-{number}.log")
            for number in (1, 2)
        ]

    async def migrate(self) -> None:
        """Bring the inbox schema into the database. Raises RunFailed."""
        await self._carry_out("migrate")

    async def queues(self) -> list[str]:
        """Return the names of all queues that the fleet is going to need. Raises RunFailed."""
        shown = json.loads(await self._carry_out("topology", "show", "--output", "json"))
        return [queue["name"] for consumer in shown["consumers"] for queue in consumer["queues"]]

    async def apply_topology(self) -> None:
        """Declare them. Raises RunFailed."""
        await self._carry_out("topology", "apply")

    async def _carry_out(self, *command: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, *command, "--config", str(self._config),
            env=self._environment, cwd=CHECKOUT, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said = f"inbox-fleet {' '.join(command)}"
        try:
            async with asyncio.timeout(_COMMAND_S):
                output, errors = await process.communicate()
        except TimeoutError:
            raise RunFailed(f"waited {_COMMAND_S:g} s in vain for `{said}`") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise RunFailed(f"`{said}` ended with exit code {process.returncode}:\n{errors.decode(errors='replace')}")
        return output.decode()
