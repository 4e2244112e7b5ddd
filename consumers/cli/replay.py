"""`inbox-fleet messages replay`: a job of the messages that are meant, run at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from consumers.cli.choosing import Conditions, NotFound, conditions
from consumers.cli.meant import (
    all_option,
    counted,
    dry_run_option,
    find_out,
    limit_option,
    reason_given,
    reason_option,
    say,
    source_option,
    with_left_out,
)
from consumers.cli.options import by_option, config_option, confirmed, operator_name, yes_option
from consumers.cli.output import write_line
from consumers.cli.replaying import carry_out, described, output_choice, pace, writes_lines

if TYPE_CHECKING:
    from consumers.config import FleetConfig
    from inbox.messages import Filter
    from inbox.replays import Replay


@click.command()
@config_option
@click.argument("ids", metavar="[ID]...", nargs=-1)
@conditions
@source_option
@all_option
@limit_option
@pace
@reason_option
@by_option
@dry_run_option
@yes_option
@output_choice
@click.pass_context
def replay(
    ctx: click.Context,
    config_file: Path,
    ids: tuple[str, ...],
    conditions: Conditions,
    source: str | None,
    everything: bool,
    limit: int | None,
    rate: float | None,
    stop_ratio: float | None,
    reason: str | None,
    by_whom: str | None,
    dry_run: bool,
    yes: bool,
    output: str | None,
) -> None:
    """Give messages that are exhausted or rejected a fresh budget.

    IDs are keys or message ids; or name conditions, or --all. The set is frozen when it starts, and is a job: Ctrl-C
    leaves it in order, and `replays resume` goes on. Each message waits for its copy in a generation of its own; the
    fleet brings the copy, and tries the message as ever.

    \b
    Examples:  inbox-fleet messages replay order-4711 --reason "customer record repaired"
               inbox-fleet messages replay --consumer invoices --error-class TaxError --dry-run
               inbox-fleet messages replay --consumer invoices --all --reason "4.2 is out" --rate 50/s
    """
    from consumers.config import load
    from consumers.loop import run_until_done
    from inbox.messages import REPLAYABLE

    why, by_whom, config = reason_given(reason, dry_run), operator_name(by_whom), load(config_file, needs=("database",))
    meant = run_until_done(
        find_out(
            config,
            ids,
            conditions,
            source=source,
            everything=everything,
            limit=limit,
            able=REPLAYABLE,
            changes=not dry_run,
        )
    )
    lines = writes_lines(output)
    say(meant, "replayed", lines=lines and dry_run)
    if dry_run:
        return
    confirmed(f"Replay {counted(meant.total)}?", yes=yes)
    frozen = run_until_done(_frozen(config, meant.filter, limit, rate, stop_ratio, reason=why, by_whom=by_whom))
    if frozen is None:
        raise NotFound("none of them can be replayed any more")
    if lines:
        write_line({"event": "frozen", **described(frozen)})
    else:
        click.echo(f"replay {frozen.id}: {counted(frozen.total)}", err=True)
    ctx.exit(with_left_out(carry_out(config, frozen.id, by_whom=by_whom, lines=lines), meant))


async def _frozen(
    config: FleetConfig, filter_: Filter, limit: int | None, rate: float | None, stop_ratio: float | None, **who: str
) -> Replay | None:
    from consumers.operating import operating
    from inbox import replays

    async with operating(config, changes=True) as connection:
        return await replays.freeze(
            connection, filter_, service=config.service.name, limit=limit, rate=rate, stop_ratio=stop_ratio, **who
        )
