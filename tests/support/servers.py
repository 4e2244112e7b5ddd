"""The servers of one test run: started when a test first needs them, shared by all workers, ended with the run.

A run owns a folder that its workers learn from the controller. Whoever needs a server first starts it there under a
lock; everybody else attaches. The controller ends all of them, and a guard process does so should the run be killed.

`DATABASE_URL` and `AMQP_URL` win; such a broker must be one of this checkout's `scripts/services`, because a test needs
a virtual host of its own. A pair named `tests` that runs (`scripts/services start --name tests`) is used and left
running, which saves the seconds that a broker takes to start.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from servers import Pair, PostgresServer, RabbitServer, ServerError, external_urls, remove_all

CHECKOUT = Path(__file__).resolve().parents[2]
STANDING_PAIR = "tests"


class Run:
    """The servers of one test run, below `directory`.

    Args:
        directory: The run's folder.
        owner: Process id of the controller, with whose end the servers end.
    """

    def __init__(self, directory: Path, owner: int) -> None:
        self.directory = directory
        self.owner = owner

    @classmethod
    def begin(cls) -> Run:
        """Make the folder of a new run that this process owns."""
        return cls(Pair.temporary().directory, os.getpid())

    @property
    def id(self) -> str:
        """A name for this run, usable in names of databases and virtual hosts."""
        return self.directory.name.rpartition("-")[2].lower()

    def database_url(self) -> str:
        """Return the URL of a database in which the shared server's role may create others, started if need be."""
        url, _ = external_urls()
        return url or self._standing_postgres() or self._private("shared").start_postgres().url()

    def broker(self) -> RabbitServer:
        """Return the shared node, started if need be; raises ServerError for an AMQP_URL that leads elsewhere."""
        _, url = external_urls()
        for place in (CHECKOUT / ".services").glob("*"):
            with contextlib.suppress(ServerError):
                broker = Pair(place).broker
                if broker.process is not None and (
                    broker.url() == url or (url is None and place.name == STANDING_PAIR)
                ):
                    return broker
        if url is not None:
            raise ServerError(
                "AMQP_URL leads to a broker that is none of this checkout's `scripts/services`; tests give each test a "
                "virtual host and need a node that they may ask. Unset AMQP_URL, or start one with `scripts/services`."
            )
        return self._private("shared").start_broker()

    def own(self, worker: str) -> Pair:
        """Return a pair of servers for one worker alone, which may stop and freeze them; nothing is started yet."""
        return self._private(f"own-{worker}")

    def end(self) -> None:
        """End and delete every server that this run started."""
        remove_all(self.directory)

    def _private(self, name: str) -> Pair:
        place = self.directory / name
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o755)
            subprocess.run(
                [sys.executable, CHECKOUT / "scripts" / "servers" / "guard.py", str(self.owner), self.directory],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
                timeout=30,
            )
        return Pair(place)

    def _standing_postgres(self) -> str | None:
        with contextlib.suppress(ServerError):
            server = Pair(CHECKOUT / ".services" / STANDING_PAIR).postgres
            return server.url() if server.process is not None else None
        return None


def heal_postgres(server: PostgresServer) -> None:
    """Bring a server back to where every test may expect it: running, not frozen."""
    server.proceed()
    server.start()


def heal_broker(server: RabbitServer) -> None:
    """Bring a node back to where every test may expect it: running, not frozen, no alarm."""
    server.proceed()
    server.start()
    if not server.is_ready():
        server.start_app()
    server.set_vm_memory_high_watermark(None)
