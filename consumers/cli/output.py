"""Data on stdout: a table for people, or one JSON object for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

SCHEMA_VERSION = 1


def write_json(data: Mapping[str, Any]) -> None:
    """Write one JSON object; `schema_version` says which fields can be relied on."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=2, ensure_ascii=False))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Write a table, as wide as its content where stdout is not a terminal, so that nothing is cut in a log."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(1000, console.width), no_color=True)
    table = Table(box=SIMPLE, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # As text, not markup: a queue may be called [red].
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
