"""What a soak comes to: one table for a terminal, one JSON object for everything else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak_parts.facts import Facts
from soak_parts.judge import Complaint, kinds
from soak_parts.slots import End

_MOST_IDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one run.

    :param faults: how often each thing was broken.
    :param events: how often each event above the level of information was logged.
    :param stories: what is on record about messages that something is wrong with.
    """

    seed: int
    seconds: float
    facts: Facts
    confirmed: int
    faults: Mapping[str, int]
    events: Mapping[str, int]
    complaints: Sequence[Complaint]
    stories: Mapping[str, Sequence[str]]

    def figures(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        tables, starts = self.facts.tables, self.facts.starts
        states = Counter(row.state for row in tables.rows.values())
        outcomes = Counter(attempt.outcome for attempt in tables.attempts)
        return {
            "verdict": "wrong" if self.complaints else "right",
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "messages": len(self.facts.published),
            "copies": self.confirmed,
            "kinds": kinds(self.facts),
            "processed": len(tables.processed),
            "effects": sum(tables.effects.values()),
            "exhausted": states["exhausted"],
            "rejected": states["rejected"],
            "discarded": states["discarded"],
            "replayed": sum(operation.event == "replayed" for operation in tables.operations),
            "replays_killed": self.facts.said.kills,
            "dead_letters": len(self.facts.letters),
            "a_second": round(len(self.facts.published) / self.seconds, 1) if self.seconds else 0.0,
            "attempts_on_record": dict(outcomes),
            "faults": dict(self.faults),
            "starts": len(starts),
            "ends": dict(Counter(start.end.value for start in starts if start.end is not End.RUNS)),
            "killed_by_a_message": len(self.facts.killers),
            "peak_mib": round(max((start.peak_mib for start in starts), default=0.0)),
            "events": dict(sorted(self.events.items())),
            "complaints": [
                {"what": complaint.what, "ids": list(complaint.ids[:_MOST_IDS])} for complaint in self.complaints
            ],
            "stories": {of: list(lines) for of, lines in self.stories.items()},
        }

    def json(self) -> str:
        """Return the figures as one line."""
        return json.dumps(self.figures())

    def show(self, console: Console) -> None:
        """Write the figures for people."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        table.add_column("")
        for name, value in self.figures().items():
            if name in ("complaints", "stories", "verdict"):
                continue
            shown = ", ".join(f"{key} {number}" for key, number in value.items()) if isinstance(value, dict) else value
            table.add_row(name.replace("_", " "), str(shown))
        console.print(table)
        for complaint in self.complaints:
            ids = ", ".join(complaint.ids[:_MOST_IDS])
            console.print(Text(f"WRONG: {complaint.what}{': ' if ids else ''}{ids}", style="bold red"))
        for of, lines in self.stories.items():
            console.print(Text("\n  ".join([of, *lines])))
        if not self.complaints:
            text = f"Each of {len(self.facts.published):,} messages came to its one right end. Seed {self.seed}."
            console.print(Text(text, style="bold green"))
