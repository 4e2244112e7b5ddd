"""The broker in a container, for machines that have Docker and no RabbitMQ.

Good for the demo; tests need a node that they can stop and ask.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path

from servers.processes import ServerError, free_ports

_FILE = Path(__file__).parent.parent / "compose.yaml"


class ComposeBroker:
    """One broker container, its port and password kept below `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def attach(cls, directory: Path) -> ComposeBroker:
        """Return the container that was started for `directory`; raises ServerError if there is none."""
        if not (directory / "server.json").exists():
            raise ServerError(f"no broker container was started for {directory}")
        return cls(directory)

    @property
    def url(self) -> str:
        """The AMQP URL of its default virtual host."""
        facts = self._facts()
        return f"amqp://inbox:{facts['INBOX_AMQP_PASSWORD']}@127.0.0.1:{facts['INBOX_AMQP_PORT']}/%2F"

    def start(self) -> str:
        """Start the container, wait until it is healthy and return its URL; raises ServerError with Docker's answer."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        facts = {"INBOX_AMQP_PORT": str(free_ports(1)[0]), "INBOX_AMQP_PASSWORD": secrets.token_hex(8)}
        (self._directory / "server.json").write_text(json.dumps(facts), encoding="utf-8")
        self._compose("up", "--detach", "--wait", "--wait-timeout", "180")
        return self.url

    def stop(self) -> None:
        """End and remove the container with its data."""
        self._compose("down", "--volumes")
        (self._directory / "server.json").unlink(missing_ok=True)

    def _facts(self) -> dict[str, str]:
        facts: dict[str, str] = json.loads((self._directory / "server.json").read_text(encoding="utf-8"))
        return facts

    def _compose(self, *arguments: str) -> None:
        project = "inbox-" + self._directory.parent.name.lower()
        finished = subprocess.run(
            ["docker", "compose", "--project-name", project, "--file", str(_FILE), *arguments],
            env={**os.environ, **self._facts()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        if finished.returncode != 0:
            raise ServerError(f"docker compose {arguments[0]} failed:\n{finished.stdout[-1500:]}")
