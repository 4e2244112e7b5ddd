"""`inbox-fleet migrate`: bring the database's inbox schema to the version of this build."""

from __future__ import annotations

from pathlib import Path

import click

from consumers.cli.exits import Exit
from consumers.cli.options import config_option
from consumers.cli.output import logs_withheld


@click.command()
@config_option
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit 4 if migrations are pending.")
@click.pass_context
def migrate(ctx: click.Context, config_file: Path, only_check: bool) -> None:
    """Apply pending migrations, forward only.

    Writes one line for each migration to stdout. Safe to run from several places at once: one applies, the others wait
    and find nothing to do.

    \b
    Examples:  inbox-fleet migrate --config fleet.toml
               inbox-fleet migrate --check || echo "not yet"
    """
    import inbox
    from consumers.config import load
    from consumers.database import reaching_database
    from consumers.loop import run_until_done

    config = load(config_file, needs=("database",))
    url = config.database_url()
    with logs_withheld(), reaching_database(url):
        if only_check:
            migrations = run_until_done(inbox.pending(url.reveal()))
        else:
            migrations = run_until_done(
                inbox.migrate(
                    url.reveal(),
                    retention_s=config.receipts.retention_s,
                    events_retention_s=config.outbox.retention_s,
                )
            )
    for migration in migrations:
        click.echo(f"{'pending' if only_check else 'applied'} {migration.number:04d}_{migration.name}")
    if not migrations:
        click.echo("the inbox schema is up to date", err=True)
    ctx.exit(Exit.PRECONDITION if only_check and migrations else Exit.OK)
