"""The command `inbox-fleet`. Modules here import click alone; everything else is imported by the command that runs."""

from consumers.cli.group import main

__all__ = ["main"]
