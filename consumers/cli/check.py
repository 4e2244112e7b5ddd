"""`inbox-fleet check`: would a start succeed?"""

from __future__ import annotations

from pathlib import Path

import click

from consumers.cli.exits import Exit
from consumers.cli.options import app_dir_option, config_option, output_option
from consumers.cli.output import logs_withheld, write_json, write_table


@click.command(short_help="Say whether a start would succeed.")
@config_option
@app_dir_option
@output_option
@click.pass_context
def check(ctx: click.Context, config_file: Path, output: str) -> None:
    """Look at configuration, handlers, database and broker; change nothing.

    Checks what a start would: that the URLs lead somewhere, the schema's version, settings that durability rests on,
    what the role may do, the connection budget of all pools and processes, and every queue and binding.
    The exit code is that of the gravest finding: 5 before 4.

    \b
    Examples:  inbox-fleet check --config fleet.toml
               inbox-fleet check --output json
    """
    from consumers.checkup import Status, examine
    from consumers.config import describe, load
    from consumers.loop import run_until_done
    from consumers.plan import plan

    codes = {Status.UNREACHABLE: Exit.UNREACHABLE, Status.UNFIT: Exit.PRECONDITION}
    config = load(config_file)
    planned = plan(config)
    with logs_withheld():
        findings = run_until_done(examine(planned))
    code = max((codes.get(finding.status, Exit.OK) for finding in findings), default=Exit.OK)
    if output == "json":
        checks = [
            {
                "check": finding.check,
                "subject": finding.subject,
                "status": finding.status.value,
                "detail": finding.detail,
            }
            for finding in findings
        ]
        write_json({"ok": code is Exit.OK, "exit_code": code, "checks": checks, "configuration": describe(config)})
    else:
        rows = [(finding.check, finding.subject, finding.status.value, finding.detail) for finding in findings]
        write_table(("check", "where", "status", "detail"), rows)
    ctx.exit(code)
