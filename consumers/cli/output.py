"""Data on stdout: a table for people, or one JSON object for scripts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

SCHEMA_VERSION = 1


@contextmanager
def logs_withheld() -> Iterator[None]:
    """Keep logs out of an answer: what matters of them is in the answer itself, or in the error."""
    import structlog

    disabled, settings = logging.root.manager.disable, structlog.get_config()
    logging.disable(logging.CRITICAL)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), cache_logger_on_first_use=False)
    try:
        yield
    finally:
        logging.disable(disabled)
        structlog.configure(**settings)


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
