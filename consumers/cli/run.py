"""`inbox-fleet run`: one process of the fleet."""

from __future__ import annotations

from pathlib import Path

import click

from consumers.cli.options import app_dir_option, config_option


@click.command()
@config_option
@app_dir_option
@click.pass_context
def run(ctx: click.Context, config_file: Path) -> None:
    """Consume, until SIGTERM.

    SIGTERM and SIGINT stop in order: no new deliveries, running attempts finish within drain.deadline, the rest is
    given back uncharged. A second signal skips the waiting.

    \b
    Example:  inbox-fleet run --config fleet.toml
    """
    from consumers.config import load
    from consumers.fleet import run as run_fleet
    from consumers.loop import run_until_done

    ctx.exit(run_until_done(run_fleet(load(config_file))))
