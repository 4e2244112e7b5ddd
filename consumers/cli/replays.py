"""`inbox-fleet replays`: the jobs that replay messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from consumers.cli.options import by_option, config_option, operator_name, output_option
from consumers.cli.output import visible, write_json, write_line, write_table
from consumers.cli.replaying import (
    carry_out,
    described,
    described_item,
    output_choice,
    pace,
    state_of,
    summary,
    table_of_items,
    writes_lines,
)

if TYPE_CHECKING:
    from consumers.config import FleetConfig
    from inbox.replays import Replay, ReplayItem

_OUTCOMES = ("pending", "replayed", "skipped", "failed")
_TEXT_SHOWN = 100


@click.group()
def replays() -> None:
    """Show the jobs that replay messages, cancel one, or go on with one."""


@replays.command("list")
@config_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@output_option
def list_(config_file: Path, limit: int, output: str) -> None:
    """List the jobs of this service, the newest first. JSON is one object a line.

    \b
    Example:  inbox-fleet replays list --limit 5
    """
    from consumers.config import load
    from consumers.loop import run_until_done
    from consumers.timeline import written

    config = load(config_file, needs=("database",))
    found = run_until_done(_list(config, limit))
    if not found:
        click.echo(f"service {config.service.name} has no replay on record", err=True)
    elif output == "json":
        for each in found:
            write_line(described(each))
    else:
        rows = [
            (
                str(each.id),
                written(each.created_at),
                state_of(each),
                f"{each.replayed} of {each.total}",
                str(each.processed),
                str(each.failed_again),
                visible(each.by_whom, _TEXT_SHOWN),
                visible(each.reason, _TEXT_SHOWN),
            )
            for each in found
        ]
        write_table(("id", "made", "state", "replayed", "processed since", "failed again", "by", "reason"), rows)


async def _list(config: FleetConfig, limit: int) -> list[Replay]:
    from consumers.operating import operating
    from inbox.replays import find

    async with operating(config, changes=False) as connection:
        return await find(connection, service=config.service.name, limit=limit)


@replays.command()
@config_option
@click.argument("replay_id", metavar="ID", type=click.UUID)
@click.option("--outcome", "outcomes", type=click.Choice(_OUTCOMES), multiple=True, help="Items of this outcome only.")
@click.option("--limit", type=click.IntRange(min=0), default=100, show_default=True, help="How many items at most.")
@output_option
def show(config_file: Path, replay_id: UUID, outcomes: tuple[str, ...], limit: int, output: str) -> None:
    """Show one job, and its items in their order: what became of each, and since it was replayed.

    \b
    Examples:  inbox-fleet replays show 0197f0c2-7d3e-7cc0-8000-5d5b4e3a2f10
               inbox-fleet replays show 0197f0c2-7d3e-7cc0-8000-5d5b4e3a2f10 --outcome skipped --outcome failed
    """
    from consumers.config import load
    from consumers.loop import run_until_done
    from consumers.timeline import written

    replay, items = run_until_done(_show(load(config_file, needs=("database",)), replay_id, outcomes, limit))
    if output == "json":
        write_json({**described(replay), "items": [described_item(item) for item in items]})
        return
    click.echo(summary(replay))
    chosen_by = ", ".join(f"{name} {value}" for name, value in replay.chosen_by.items())
    for name, value in (
        ("made", f"{written(replay.created_at)} by {replay.by_whom}"),
        ("reason", replay.reason),
        ("chosen by", chosen_by),
        ("rate", "" if replay.rate is None else f"{replay.rate:g} a second at most"),
        ("stops", "" if replay.stop_ratio is None else f"when more than {replay.stop_ratio:g} have failed again"),
        ("runner", replay.runner or ""),
        ("ended", written(replay.finished_at)),
        ("cancelled", replay.cancelled_by or ""),
    ):
        if value:
            click.echo(f"{name:<10} {visible(value, 500)}")
    if items:
        table_of_items(items)


async def _show(
    config: FleetConfig, replay_id: UUID, outcomes: tuple[str, ...], limit: int
) -> tuple[Replay, list[ReplayItem]]:
    from consumers.operating import operating
    from inbox.replays import ItemOutcome, get, items

    wanted = [ItemOutcome(outcome) for outcome in outcomes] or None
    async with operating(config, changes=False) as connection:
        replay = await get(connection, replay_id)
        return replay, await items(connection, replay_id, outcomes=wanted, limit=limit)


@replays.command()
@config_option
@click.argument("replay_id", metavar="ID", type=click.UUID)
@by_option
def cancel(config_file: Path, replay_id: UUID, by_whom: str | None) -> None:
    """Cancel a job for good. What it has replayed stays replayed; the rest stays as it is.

    \b
    Example:  inbox-fleet replays cancel 0197f0c2-7d3e-7cc0-8000-5d5b4e3a2f10
    """
    from consumers.config import load
    from consumers.loop import run_until_done

    by_whom = operator_name(by_whom)
    cancelled = run_until_done(_cancel(load(config_file, needs=("database",)), replay_id, by_whom))
    click.echo(summary(cancelled))


async def _cancel(config: FleetConfig, replay_id: UUID, by_whom: str) -> Replay:
    from consumers.operating import operating
    from inbox import replays

    async with operating(config, changes=True) as connection:
        return await replays.cancel(connection, replay_id, by_whom=by_whom)


@replays.command()
@config_option
@click.argument("replay_id", metavar="ID", type=click.UUID)
@pace
@by_option
@output_choice
@click.pass_context
def resume(
    ctx: click.Context,
    config_file: Path,
    replay_id: UUID,
    rate: float | None,
    stop_ratio: float | None,
    by_whom: str | None,
    output: str | None,
) -> None:
    """Go on with a job that was interrupted or has stopped, perhaps at another pace.

    A finished one is shown and left alone.

    \b
    Examples:  inbox-fleet replays resume 0197f0c2-7d3e-7cc0-8000-5d5b4e3a2f10
               inbox-fleet replays resume 0197f0c2-7d3e-7cc0-8000-5d5b4e3a2f10 --stop-on-failure-ratio 0.5
    """
    from consumers.config import load
    from consumers.loop import run_until_done

    by_whom, config = operator_name(by_whom), load(config_file, needs=("database",))
    if rate is not None or stop_ratio is not None:
        run_until_done(_change(config, replay_id, rate=rate, stop_ratio=stop_ratio))
    ctx.exit(carry_out(config, replay_id, by_whom=by_whom, lines=writes_lines(output)))


async def _change(config: FleetConfig, replay_id: UUID, **pace: Any) -> Replay:
    from consumers.operating import operating
    from inbox.replays import change

    async with operating(config, changes=True) as connection:
        return await change(connection, replay_id, **pace)
