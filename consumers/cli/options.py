"""Options that several commands share."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

config_option = click.option(
    "--config",
    "-c",
    "config_file",
    type=click.Path(path_type=Path),
    default=Path("fleet.toml"),
    show_default=True,
    envvar="INBOX_FLEET_CONFIG",
    help="The fleet's TOML file.",
)

output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How data is written to stdout.",
)


by_option = click.option(
    "--by",
    "by_whom",
    metavar="NAME",
    help="Who does it, for the record.  [default: user@host]",
)

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask, also on a terminal.")


def operator_name(given: str | None) -> str:
    """Return who does it: as given, else the user of this process at its host.

    :raises click.BadParameter: a name is given that says nothing.
    """
    if given is not None:
        if not given.strip():
            raise click.BadParameter("it is empty: say who does it", param_hint="'--by'")
        return given.strip()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def confirmed(question: str, *, yes: bool) -> None:
    """Ask on a terminal, and abort if the answer is no. Scripts are not asked.

    :param yes: it was answered on the command line.
    """
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)


def app_dir_option(function: F) -> F:
    """Add --app-dir, and make modules in that folder importable before the command runs."""
    return click.option(
        "--app-dir",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        show_default="current folder",
        callback=_importable,
        expose_value=False,
        help="Where handlers are imported from, besides installed packages.",
    )(function)


def _importable(_context: click.Context, _parameter: click.Parameter, folder: Path) -> None:
    path = str(folder.resolve())
    # The current folder is on the path already for `python -m`, and not for an installed command.
    if path not in sys.path:
        sys.path.insert(0, path)
