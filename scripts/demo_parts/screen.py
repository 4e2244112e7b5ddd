"""What the demo shows: a line for each event, a bar while it works, and a table at the end.

On a terminal the bar moves; elsewhere it is a line now and then, so that a log can be read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from demo_parts.figures import Figures
from demo_parts.witness import Evidence

_PLAIN_EVERY_S = 2.0
_PLAIN_WIDTH = 120


class Screen:
    """Writes for people.

    Args:
        to_stderr: Leave stdout to the JSON.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        if not console.is_terminal:
            console.width = _PLAIN_WIDTH
        self._console = console
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=40), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._tasks = (self._bar.add_task("published", total=None), self._bar.add_task("effects  ", total=None))
        self._plain_at = 0.0
        self._left_out: list[str] = []

    def say(self, what: str) -> None:
        """Write one line, with the time since the start."""
        self._console.print(Text(f"{time.monotonic() - self._began:5.1f} s  {what}"))

    def left_out(self, what: str) -> None:
        """Say what this run does not show, now and again at the end."""
        self._left_out.append(what)
        self.say(what)

    @contextmanager
    def working(self, *, copies: int, orders: int) -> Iterator[None]:
        """Show progress inside the block: `copies` are to be published and `orders` to have their effect."""
        for task, total in zip(self._tasks, (copies, orders), strict=True):
            self._bar.update(task, total=total)
        if not self._console.is_terminal:
            yield
            return
        with self._bar:
            yield

    def progress(self, *, published: int, effects: int) -> None:
        """Show how far it is."""
        for task, completed in zip(self._tasks, (published, effects), strict=True):
            self._bar.update(task, completed=completed)
        if not self._console.is_terminal and time.monotonic() >= self._plain_at:
            self._plain_at = time.monotonic() + _PLAIN_EVERY_S
            self.say(f"{published:,} copies published, {effects:,} orders done")

    def table(self, figures: Figures, evidence: Evidence) -> None:
        """Show the figures, and where each comes from."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        table.add_column("", justify="right")
        table.add_column("seen by", style="dim")
        for name, number, source in (
            ("published", figures.published, "confirmed to the shop by the broker"),
            ("unique", figures.unique, "the shop's order book"),
            ("effects", figures.effects, "the service's table"),
            ("duplicates absorbed", figures.duplicates_absorbed, "published less effects, and no message is left"),
            ("redeliveries", figures.redeliveries, f"a file of the handler's: {evidence.calls:,} calls"),
            (
                "failures",
                figures.failures,
                f"the same: {evidence.on_purpose:,} on purpose; {evidence.cut_off:,} more were killed",
            ),
            ("exhausted", figures.exhausted, "their dead letters, read by a foreign client"),
            ("replayed", figures.replayed, "that file: calls in a second generation"),
            ("lost", figures.lost, "orders without a row in that table"),
            ("doubled", figures.doubled, "rows for an order that has one already"),
        ):
            wrong = name in ("lost", "doubled") and number
            table.add_row(name, Text(f"{number:,}", style="bold red" if wrong else "bold"), source)
        self._console.print(table)

    def verdict(self, figures: Figures, complaints: list[str]) -> None:
        """Say how it ended."""
        for line in self._left_out:
            self._console.print(Text(line, style="yellow"))
        for line in complaints:
            self.wrong(line)
        if not complaints:
            line = (
                f"Each of {figures.unique:,} orders has exactly one effect, {figures.replayed} of them after fix and "
                "replay; no queue holds anything but their dead letters."
            )
            self._console.print(Text(f"{line} {figures.seconds:.1f} s.", style="bold green"))

    def wrong(self, what: str) -> None:
        """Say what is wrong."""
        self._console.print(Text(f"WRONG: {what}", style="bold red"))

    def plain(self, text: str) -> None:
        """Write a text as it is."""
        self._console.print(Text(text))
