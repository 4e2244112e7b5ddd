"""One PostgreSQL and one broker that belong together, found again by name in a checkout.

DATABASE_URL and AMQP_URL in the environment win: what they name is never started, stopped or changed from here. Both
servers start at the same time, because the broker takes seconds and the database does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from servers.compose import ComposeBroker
from servers.postgres import PostgresServer
from servers.processes import Account, ServerError
from servers.rabbit_install import docker_answers, find_programs
from servers.rabbitmq import RabbitServer

# A unix socket's path may have 107 bytes; below the pair's folder stands /postgres/.s.PGSQL.NNNNN.
_LONGEST_DIRECTORY = 107 - len("/postgres/.s.PGSQL.NNNNN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    """Where a pair is reached; the URLs hold passwords."""

    database: str
    amqp: str


def external_urls() -> tuple[str | None, str | None]:
    """Return DATABASE_URL and AMQP_URL of the environment, None where unset or empty."""
    return os.environ.get("DATABASE_URL") or None, os.environ.get("AMQP_URL") or None


def remove_all(directory: Path) -> None:
    """End and delete every pair of servers directly below a folder, and the folder. Two may do so at the same time."""
    for place in directory.glob("*"):
        if place.is_dir():
            Pair(place).remove()
    shutil.rmtree(directory, ignore_errors=True)


def _place(checkout: Path, name: str) -> Path:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ServerError(f"{name!r} is no name for a pair of servers: use letters, digits, - and _")
    return checkout / ".services" / name


class Pair:
    """The servers below one directory. `start` and `stop` may be called from any process, also at the same time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()

    @classmethod
    def named(cls, checkout: Path, name: str) -> Pair:
        """Return the pair `name` of a checkout, its folder made if needed.

        Where the servers could not live below the checkout (path too long or with spaces, or closed to the user that
        runs them) the folder is a link into the temporary directory.
        """
        place = _place(checkout, name)
        folder = place.parent
        folder.mkdir(mode=0o755, exist_ok=True)
        suited = (
            len(str(place)) <= _LONGEST_DIRECTORY and " " not in str(place) and Account.unprivileged().can_reach(folder)
        )
        if place.is_symlink() and not place.exists():
            place.unlink()
        if not place.exists():
            if suited:
                place.mkdir(mode=0o755)
            else:
                elsewhere = Path(tempfile.mkdtemp(prefix="inbox-fleet-"))
                elsewhere.chmod(0o755)
                place.symlink_to(elsewhere)
        return cls(place)

    @classmethod
    def looked_up(cls, checkout: Path, name: str) -> Pair:
        """Return the pair `name` of a checkout as it is. Nothing is made: if there is none, none of it runs."""
        return cls(_place(checkout, name))

    @classmethod
    def all_of(cls, checkout: Path) -> dict[str, Pair]:
        """Return every pair of a checkout by its name."""
        places = sorted((checkout / ".services").glob("*"))
        return {place.name: cls(place) for place in places if place.is_dir()}

    @classmethod
    def temporary(cls) -> Pair:
        """Return a pair in a new temporary folder, for servers that end with their owner."""
        directory = Path(tempfile.mkdtemp(prefix="inbox-fleet-"))
        directory.chmod(0o755)
        return cls(directory)

    @property
    def postgres(self) -> PostgresServer:
        """The pair's database server; raises ServerError if none was created."""
        return PostgresServer.attach(self.directory / "postgres")

    @property
    def broker(self) -> RabbitServer:
        """The pair's node; raises ServerError if none was created, as when AMQP_URL or a container stands in for it."""
        return RabbitServer.attach(self.directory / "rabbitmq")

    def start(self, *, postgres_version: str | None = None) -> Urls:
        """Create and start what is not there yet, and return how to reach it. Raises ServerError with what to do."""
        database_url, amqp_url = external_urls()
        with ThreadPoolExecutor(max_workers=2) as starters:
            database = starters.submit(lambda: database_url or self.start_postgres(postgres_version).url())
            broker = starters.submit(lambda: amqp_url or self._start_broker_or_container())
            return Urls(database=database.result(), amqp=broker.result())

    def start_postgres(self, version: str | None = None) -> PostgresServer:
        """Create and start the private database server alone, whatever the environment says."""
        directory = self.directory / "postgres"
        with self._lock("postgres"):
            if not (directory / "server.json").exists():
                shutil.rmtree(directory, ignore_errors=True)
                PostgresServer.create(directory, version=version)
            server = PostgresServer.attach(directory)
            server.start()
            return server

    def start_broker(self) -> RabbitServer:
        """Create and start the private node alone, whatever the environment says."""
        directory = self.directory / "rabbitmq"
        with self._lock("rabbitmq"):
            if not (directory / "server.json").exists():
                shutil.rmtree(directory, ignore_errors=True)
                RabbitServer.create(directory)
            server = RabbitServer.attach(directory)
            server.start()
            return server

    def urls(self) -> Urls | None:
        """Return how to reach the pair, or None unless both servers run."""
        database_url, amqp_url = external_urls()
        with contextlib.suppress(ServerError):
            if database_url is None and self.postgres.process is not None:
                database_url = self.postgres.url()
        if amqp_url is None:
            amqp_url = self._broker_url()
        return None if database_url is None or amqp_url is None else Urls(database=database_url, amqp=amqp_url)

    @property
    def runs(self) -> bool:
        """Whether any of the pair's own servers runs, whatever the environment says."""
        with contextlib.suppress(ServerError):
            if self.postgres.process is not None:
                return True
        return self._broker_url() is not None

    def stop(self) -> None:
        """End the servers that this pair started; their data stays. Does nothing if none runs."""
        with contextlib.suppress(FileNotFoundError), self._lock("postgres"), self._lock("rabbitmq"):
            self._stop()

    def remove(self) -> None:
        """End the servers and delete their data and the pair's folder."""
        with contextlib.suppress(FileNotFoundError), self._lock("postgres"), self._lock("rabbitmq"):
            self._stop()
            shutil.rmtree(self.directory)

    def _stop(self) -> None:
        enders: list[Callable[[], None]] = []
        with contextlib.suppress(ServerError):
            enders.append(self.postgres.stop)
        with contextlib.suppress(ServerError):
            enders.append(self.broker.end)
        with contextlib.suppress(ServerError):
            enders.append(ComposeBroker.attach(self.directory / "compose").stop)
        with ThreadPoolExecutor(max_workers=3) as pool:
            for ended in [pool.submit(end) for end in enders]:
                ended.result()

    def _start_broker_or_container(self) -> str:
        if find_programs() is None and os.geteuid() != 0 and docker_answers():
            with self._lock("rabbitmq"):
                return ComposeBroker(self.directory / "compose").start()
        return self.start_broker().url()

    def _broker_url(self) -> str | None:
        with contextlib.suppress(ServerError):
            broker = self.broker
            return broker.url() if broker.process is not None else None
        with contextlib.suppress(ServerError):
            return ComposeBroker.attach(self.directory / "compose").url
        return None

    @contextlib.contextmanager
    def _lock(self, server: str) -> Iterator[None]:
        with (self.directory / f"{server}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
