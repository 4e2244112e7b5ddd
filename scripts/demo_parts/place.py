"""Where a run takes place: a database, queues and a folder of its own, which go when the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
from pathlib import Path

from demo_parts.brokers import MANAGEMENT_VARIABLE, DemoBroker, GivenBroker, PrivateBroker
from demo_parts.database import DemoDatabase
from servers import Pair, ServerError, Urls


class Place:
    """The names and addresses of one run.

    Args:
        pair: The private servers; which of them are used, the environment decides.
        urls: How the servers are reached.
        checkout: Whose other private servers may stand behind a URL.
    """

    def __init__(self, pair: Pair, urls: Urls, checkout: Path) -> None:
        self.service = f"demo-{secrets.token_hex(3)}"
        self.queue = f"{self.service}.orders"
        # Below the servers' folder, so that it goes with them at the latest.
        self.directory = pair.directory / "runs" / self.service
        self.directory.mkdir(parents=True)
        self.database = DemoDatabase(urls.database, self.service.replace("-", "_"))
        self.broker = self._broker([pair, *Pair.all_of(checkout).values()], urls.amqp)
        self.queues: list[str] = []

    def _broker(self, pairs: list[Pair], url: str) -> DemoBroker:
        for pair in pairs:
            with contextlib.suppress(ServerError):
                if pair.broker.url() == url and pair.broker.process is not None:
                    return PrivateBroker(pair.broker, self.service)
        return GivenBroker(url, service=self.service, management_url=os.environ.get(MANAGEMENT_VARIABLE) or None)

    @property
    def has_logs(self) -> bool:
        """Whether any process of the fleet was started."""
        return any(self.directory.glob("*.log"))

    def description(self) -> str:
        """Say where everything is, as lines for the shell. The URLs hold passwords."""
        lines = [
            f"export DATABASE_URL={shlex.quote(self.database.url)}",
            f"export AMQP_URL={shlex.quote(self.broker.url)}",
        ]
        return "\n".join(
            [*lines, f"cd {shlex.quote(str(self.directory))}  # fleet.toml, logs, and what the handler wrote"]
        )

    async def clear(self, *, keep_directory: bool) -> None:
        """Delete what the run made. Raises RunFailed or ServerError if something is left behind."""
        if not keep_directory:
            shutil.rmtree(self.directory, ignore_errors=True)
        try:
            await asyncio.to_thread(self.broker.remove, self.queues)
        finally:
            await self.database.drop()
