"""Where a soak takes place: servers, relays, a folder and a fleet of its own, all of which go when it ends."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path
from string import Template
from types import TracebackType
from typing import Self

from deadlines import RunFailed
from servers import Pair, PostgresServer, RabbitServer
from servers.processes import free_ports
from servers.relay import Relay
from soak_parts.facts import Limits
from soak_parts.ledger import Ledger
from soak_parts.mail import CONSUMER
from soak_parts.slots import CHECKOUT, Slot, fleet_command, fleet_environment

PROCESSES = 3
_HERE = Path(__file__).resolve().parent
_COMMAND_S = 60.0


class Place:
    """Everything that a soak needs around it. Use it with `async with`; the logs stay until `forget`.

    Attributes:
        postgres, broker: The servers.
        ledger: The database, past all relays.
        slots: The places of the fleet's processes, none of which runs yet.
    """

    postgres: PostgresServer
    broker: RabbitServer
    ledger: Ledger

    def __init__(self) -> None:
        self._pair = Pair.named(CHECKOUT, f"soak-{secrets.token_hex(3)}")
        self.directory = Path(tempfile.mkdtemp(prefix="inbox-soak-"))
        self.slots: list[Slot] = []
        self._template = Template((_HERE / "fleet.toml").read_text(encoding="utf-8"))
        consumer = tomllib.loads(self._template.substitute(port=0))["consumers"][CONSUMER]
        self.queue: str = consumer["queue"]
        self.dead_letters = f"{self.queue}.dead"
        self.limits = Limits(max_attempts=consumer["max_attempts"], max_aborts=consumer["max_aborts"])
        self._relays = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._prepare()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    def forget(self) -> None:
        """Delete logs and configuration."""
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _prepare(self) -> None:
        # Its own servers, whatever the environment names: they are going to be killed.
        self.postgres, self.broker = await asyncio.gather(
            asyncio.to_thread(self._pair.start_postgres), asyncio.to_thread(self._pair.start_broker)
        )
        database_url, amqp_url = self.postgres.url(), self.broker.url()
        for number, port in enumerate(free_ports(PROCESSES)):
            config = self.directory / f"fleet-{number}.toml"
            config.write_text(self._template.substitute(port=port), encoding="utf-8")
            database = await self._relays.enter_async_context(Relay.before(database_url))
            broker = await self._relays.enter_async_context(Relay.before(amqp_url))
            self.slots.append(
                Slot(
                    number=number,
                    command=fleet_command("run", "--config", str(config)),
                    environment=fleet_environment(
                        self.directory, database_url=database.url(database_url), amqp_url=broker.url(amqp_url)
                    ),
                    directory=self.directory,
                    port=port,
                    database=database,
                    broker=broker,
                )
            )
        self.ledger = Ledger(database_url)
        await self.ledger.create((_HERE / "schema.sql").read_text(encoding="utf-8"))
        await self._carry_out("migrate")
        await self._carry_out("topology", "apply")

    async def _carry_out(self, *command: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *fleet_command(*command, "--config", str(self.directory / "fleet-0.toml")),
            env=fleet_environment(self.directory, database_url=self.postgres.url(), amqp_url=self.broker.url()),
            cwd=CHECKOUT, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_COMMAND_S):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise RunFailed(f"`inbox-fleet {' '.join(command)}` failed:\n{said.decode(errors='replace')}")

    async def _leave(self) -> None:
        for slot in self.slots:
            slot.end()
        await self._relays.aclose()
        await asyncio.to_thread(self._pair.remove)
