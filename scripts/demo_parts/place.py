"""Where a run takes place: servers, a database, queues and a folder of its own; all of it goes when the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator
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
        self.directory = Path(tempfile.mkdtemp(prefix=f"inbox-fleet-{self.service}-"))
        self.database = DemoDatabase(urls.database, self.service.replace("-", "_"))
        self.broker = self._broker([pair, *map(Pair, (checkout / ".services").glob("*"))], urls.amqp)
        self.queues: list[str] = []

    def _broker(self, pairs: list[Pair], url: str) -> DemoBroker:
        for pair in pairs:
            with contextlib.suppress(ServerError):
                if pair.broker.url() == url and pair.broker.process is not None:
                    return PrivateBroker(pair.broker, self.service)
        return GivenBroker(url, service=self.service, management_url=os.environ.get(MANAGEMENT_VARIABLE) or None)

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
        """Delete what the run made. Raises DemoFailed or ServerError if something is left behind."""
        if not keep_directory:
            shutil.rmtree(self.directory, ignore_errors=True)
        try:
            await asyncio.to_thread(self.broker.remove, self.queues)
        finally:
            await self.database.drop()


@contextlib.contextmanager
def servers_in_use(pair: Pair) -> Iterator[ServersInUse]:
    """Hold the pair's servers in use. The last demo that lets go may stop them, if a demo has started them."""
    with (pair.directory / "demos.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield ServersInUse(pair, file.fileno())


class ServersInUse:
    """A pair of servers that this process, and perhaps other demos, use."""

    def __init__(self, pair: Pair, lock: int) -> None:
        self._pair, self._lock = pair, lock
        self._started_by_demo = pair.directory / "started-by-demo"

    @property
    def run(self) -> bool:
        """Whether any of the pair's own servers runs."""
        for server in ("postgres", "broker"):
            with contextlib.suppress(ServerError):
                if getattr(self._pair, server).process is not None:
                    return True
        return False

    def start(self) -> Urls:
        """Start what is not there yet, and remember if nothing was."""
        if not self.run:
            self._started_by_demo.touch()
        return self._pair.start()

    def keep(self) -> None:
        """Let them run on, whoever has started them."""
        self._started_by_demo.unlink(missing_ok=True)

    def stop_if_last(self) -> None:
        """Stop them if demos have started them and no other one uses them."""
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._started_by_demo.exists():
                self._pair.stop()
                self._started_by_demo.unlink()
