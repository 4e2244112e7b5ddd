"""`inbox-fleet topology`: the queues, bindings and parking queues that the configuration asks for."""

from __future__ import annotations

import click


@click.group()
def topology() -> None:
    """Show, declare or verify queues, bindings and parking queues.

    A running fleet never declares anything: it verifies, and names what differs.
    """
