"""What the handlers lived through, in a file of each process: outside any transaction, so no rollback takes it back.

One line is one write, so a process that is killed leaves whole lines.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from consumers import Envelope

DIRECTORY_VARIABLE = "SOAK_WITNESS_DIRECTORY"
_BEGAN, _KILLS = "began", "kills"


class Witness:
    """Writes down what a handler does. One for each process."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Witness]:
        """Open this process's file."""
        path = Path(os.environ[DIRECTORY_VARIABLE]) / f"calls-{os.getpid()}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            yield cls(file)
        finally:
            os.close(file)

    def began(self, envelope: Envelope) -> None:
        """A call of the handler began."""
        self._write(envelope, _BEGAN)

    def kills(self, envelope: Envelope) -> None:
        """The handler is about to kill its process."""
        self._write(envelope, _KILLS)

    def _write(self, envelope: Envelope, what: str) -> None:
        line = {
            "what": what,
            "message_id": envelope.id,
            "generation": envelope.attempt.generation,
            "claim_id": str(envelope.attempt.claim_id),
        }
        os.write(self._file, (json.dumps(line) + "\n").encode())


@dataclass(frozen=True, slots=True)
class Evidence:
    """What all processes wrote.

    :param starts: the attempts, by claim, whose handler was called, by message id and generation.
    :param killers: the message that killed a process, by the process's id.
    """

    starts: dict[tuple[str, int], frozenset[str]]
    killers: dict[int, str]

    @classmethod
    def read(cls, directory: Path) -> Evidence:
        """Read it."""
        starts: dict[tuple[str, int], set[str]] = defaultdict(set)
        killers: dict[int, str] = {}
        for file in directory.glob("calls-*.jsonl"):
            for line in file.read_text(encoding="utf-8").splitlines():
                call = json.loads(line)
                if call["what"] == _KILLS:
                    killers[int(file.stem.removeprefix("calls-"))] = call["message_id"]
                else:
                    starts[call["message_id"], call["generation"]].add(call["claim_id"])
        return cls({of: frozenset(claims) for of, claims in starts.items()}, killers)
