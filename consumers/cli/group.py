"""The root of the commands: what they have in common is their exit codes and how an expected error is said."""

from __future__ import annotations

from typing import Any

import click

from consumers.cli.check import check
from consumers.cli.exhausted import exhausted
from consumers.cli.exits import Exit, explain
from consumers.cli.messages import messages
from consumers.cli.migrate import migrate
from consumers.cli.replays import replays
from consumers.cli.run import run
from consumers.cli.topology import topology

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:<3}  {code.meaning}" for code in Exit)


class _Commands(click.Group):
    """Says expected errors in one block instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            # click says these itself; a closed pipe means that nobody reads on.
            raise
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            code, text = explained
            click.echo(text, err=True)
            ctx.exit(code)


@click.group(
    cls=_Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="inbox-fleet", message="%(prog)s %(version)s")
def main() -> None:
    """RabbitMQ consumers that give each message exactly one committed effect in PostgreSQL.

    \b
    First time:  inbox-fleet migrate && inbox-fleet topology apply
    Then:        inbox-fleet check && inbox-fleet run
    Questions:   inbox-fleet messages show ID, inbox-fleet messages list --state exhausted

    Data goes to stdout, messages to stderr. Passwords are never taken from the command line: the configuration says
    which environment variables or files hold the URLs.
    """


for command in (run, migrate, topology, check, messages, exhausted, replays):
    main.add_command(command)
