"""What the demo's handler saw, in a file of its own: outside the transaction, so that a rollback takes nothing back.

Both fleet processes append to one file, one line by one write, which the kernel keeps apart. A process that is killed
leaves calls that began and never ended.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from consumers import Envelope

WITNESS_VARIABLE = "DEMO_WITNESS_DIRECTORY"
_CALLS = "calls.jsonl"
_BEGAN, _RETURNED, _RAISED = "began", "returned", "raised"


class OrderTrouble(Exception):
    """The order's own fault: its handler fails at the first call, or at each one as long as it has a bug."""


class Witness:
    """Writes down each call of the handler. Use it as a context manager, in one process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = os.open(directory / _CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @contextmanager
    def call(self, envelope: Envelope) -> Iterator[None]:
        """Write down that a call began, and how it ended."""
        self._write(envelope, _BEGAN)
        try:
            yield
        except BaseException as error:
            self._write(envelope, _RAISED, type(error).__name__)
            raise
        self._write(envelope, _RETURNED)

    def is_first_call(self, envelope: Envelope) -> bool:
        """Return whether this is asked for the first time about this message, by whatever process."""
        try:
            (self._directory / f"{envelope.id}.seen").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def kills(self, envelope: Envelope) -> None:
        """Write down that this message is about to kill this process."""
        _killing(self._directory, os.getpid()).write_text(envelope.id)

    def _write(self, envelope: Envelope, what: str, error: str | None = None) -> None:
        line = {
            "message_id": envelope.id,
            "generation": envelope.attempt.generation,
            "attempt": envelope.attempt.number,
            "redelivered": envelope.redelivered,
            "what": what,
            "error": error,
        }
        os.write(self._file, (json.dumps(line) + "\n").encode())


def killer(directory: Path, pid: int) -> str | None:
    """Return the id of the message that has killed a process, if one has."""
    with suppress(FileNotFoundError):
        return _killing(directory, pid).read_text()
    return None


def _killing(directory: Path, pid: int) -> Path:
    return directory / f"{pid}.killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the handlers' calls come to.

    :param calls: how often the handler was called.
    :param redeliveries: calls for a delivery that the broker, or a parked copy, marked as not the first.
    :param failures: calls that ended in an exception, whatever its cause.
    :param on_purpose: those of them that an order caused by itself.
    :param cut_off: calls that never ended, because their process was killed.
    :param replayed: ids of the orders that it was called with in a generation after their first one.
    """

    calls: int
    redeliveries: int
    failures: int
    on_purpose: int
    cut_off: int
    replayed: frozenset[str]

    @classmethod
    def read(cls, directory: Path) -> Evidence:
        """Count what both processes wrote."""
        counts: Counter[str] = Counter()
        replayed = set()
        with suppress(FileNotFoundError), (directory / _CALLS).open(encoding="utf-8") as lines:
            for line in lines:
                call = json.loads(line)
                counts[call["what"]] += 1
                counts["redelivered"] += call["what"] == _BEGAN and call["redelivered"]
                counts["on purpose"] += call["error"] == OrderTrouble.__name__
                if call["generation"] > 1:
                    replayed.add(call["message_id"])
        return cls(
            calls=counts[_BEGAN],
            redeliveries=counts["redelivered"],
            failures=counts[_RAISED],
            on_purpose=counts["on purpose"],
            cut_off=counts[_BEGAN] - counts[_RETURNED] - counts[_RAISED],
            replayed=frozenset(replayed),
        )
