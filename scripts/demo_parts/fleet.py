"""The fleet of one run of the demo: its configuration, its two processes, and the commands that are run beside them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from deadlines import RunFailed
from demo_parts.fleet_process import CHECKOUT, FleetProcess
from demo_parts.witness import WITNESS_VARIABLE

_COMMAND = (sys.executable, "-m", "consumers.cli")
_COMMAND_S = 30.0
_FIRST_RELEASE = "demo_parts.service:first_release"
_FIXED_RELEASE = "demo_parts.service:fixed_release"
_THE_EXHAUSTED = ("--consumer", "orders", "--state", "exhausted")


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of the fleet: all of them, and the one among them that holds what has ended without effect."""

    names: list[str]
    dead_letters: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """An order that is exhausted, as the fleet's own command lists it."""

    order: str
    key: str
    attempts: int
    error: str


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
        self._names = {"service": service, "queue": queue}
        self._configure(_FIRST_RELEASE)
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
        self.processes = [FleetProcess(f"process {number}", command, self._environment, directory) for number in (1, 2)]

    def fix(self) -> None:
        """Put the release without the bug in place: what starts from now on runs it."""
        self._configure(_FIXED_RELEASE)

    async def migrate(self) -> None:
        """Bring the inbox schema into the database. Raises RunFailed."""
        await self._carry_out("migrate")

    async def queues(self) -> Queues:
        """Return all queues that the fleet is going to need. Raises RunFailed."""
        shown = json.loads(await self._carry_out("topology", "show", "--output", "json"))
        [consumer] = shown["consumers"]
        [dead_letters] = [queue["name"] for queue in consumer["queues"] if queue["purpose"] == "dead-letter"]
        return Queues([queue["name"] for queue in consumer["queues"]], dead_letters)

    async def apply_topology(self) -> None:
        """Declare them. Raises RunFailed."""
        await self._carry_out("topology", "apply")

    async def exhausted(self) -> list[Exhausted]:
        """Ask for the orders that are exhausted, as an operator does. Raises RunFailed."""
        listed = await self._carry_out("messages", "list", *_THE_EXHAUSTED, "--output", "json")
        rows = [json.loads(line) for line in listed.splitlines()]
        return [
            Exhausted(row["message_id"], row["key"], row["attempts"], row["error_class"].rpartition(".")[2])
            for row in rows
        ]

    async def replay_exhausted(self, reason: str) -> None:
        """Replay all of them, as an operator does. Raises RunFailed."""
        await self._carry_out("messages", "replay", *_THE_EXHAUSTED, "--reason", reason, "--yes")

    def _configure(self, handler: str) -> None:
        template = Template(Path(__file__).with_name("fleet.toml").read_text(encoding="utf-8"))
        self._config.write_text(template.substitute(self._names, handler=handler), encoding="utf-8")

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
