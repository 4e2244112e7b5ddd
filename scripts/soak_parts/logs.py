"""What the processes logged: how often each event, and every line that nothing explains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from soak_parts.slots import End, Start

_BROKER_GONE = ("error when creating transport", "Unexpected connection close from remote")
_LONGEST = 500


class Logs:
    """The logs of all processes.

    Attributes:
        events: How often each event above the level of information was logged.
        alarms: Lines that are errors without an explanation, or no lines of the product's at all.
    """

    def __init__(self, starts: Iterable[Start]) -> None:
        self.events: Counter[str] = Counter()
        self.alarms: list[str] = []
        for start in starts:
            for line in _whole_lines(start):
                self._read(start, line)

    def _read(self, start: Start, line: str) -> None:
        try:
            said = json.loads(line)
            level, event = said["level"], said["event"]
        except (ValueError, TypeError, KeyError):
            self.alarms.append(f"{start.log.name}: {line[:_LONGEST]}")
            return
        if level not in ("debug", "info"):
            self.events[event] += 1
        if level in ("error", "critical") and not _is_explained(said):
            self.alarms.append(f"{start.log.name}: {line[:_LONGEST]}")


def _is_explained(said: Mapping[str, Any]) -> bool:
    """Whether an error is right in a soak."""
    match said["event"]:
        case "attempt.settled":  # poison has come to its end, which is an alarm wherever it is not meant
            return said.get("outcome") in ("exhausted", "rejected")
        case str(event):  # the broker goes or is gone, and its client says so before we do
            return said.get("logger") == "aiormq.connection" and event.startswith(_BROKER_GONE)
        case _:
            return False


def _whole_lines(start: Start) -> Iterator[str]:
    """The lines of a log; the last one of a process that was killed may have been cut off."""
    if not start.log.exists():
        return
    lines = start.log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for line in lines:
        if line.endswith("\n") or start.end is End.STOPPED:
            yield line.rstrip("\n")
