"""Data on stdout: a table for people, or JSON for scripts.

What senders chose is on record, and is shown here: ids, types, texts of errors. None of it reaches a terminal as it is.
"""

from __future__ import annotations

import json
import logging
import re
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


def visible(text: str, limit: int | None = None) -> str:
    """Return text that a terminal prints and does not obey: what does not print is escaped, and what is long is cut.

    :param limit: how many characters at most.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isprintable() else _OBEYED.sub(lambda found: _escaped(found[0]), text)


def write_json(data: Mapping[str, Any]) -> None:
    """Write one JSON object; `schema_version` says which fields can be relied on."""
    click.echo(_json(data, indent=2))


def write_line(data: Mapping[str, Any]) -> None:
    """Write one JSON object as one line, at once: whoever reads on sees it when it happens."""
    click.echo(_json(data))


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
        table.add_row(*(Text(visible(cell)) for cell in row))
    console.print(table)


_OBEYED = re.compile(r"[^\x20-\x7e]")


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _json(data: Mapping[str, Any], indent: int | None = None) -> str:
    written = json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=indent, ensure_ascii=False)
    # What is left of line ends and controls stands between values, or is one that JSON does not escape by itself.
    return written if written.isprintable() else _OBEYED.sub(lambda found: _escaped_in_json(found[0]), written)


def _escaped_in_json(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
