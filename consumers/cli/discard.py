"""`inbox-fleet messages discard`: messages are given up, one transaction for each, with who and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumers.cli.choosing import Conditions, conditions
from consumers.cli.exits import Exit
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
from consumers.cli.output import visible, write_line
from consumers.cli.replaying import output_choice, writes_lines

if TYPE_CHECKING:
    import asyncpg

    from consumers.config import FleetConfig
    from inbox.discards import DiscardAnswer, Seen

_ID_SHOWN = 100
_TRIES = 6


@click.command()
@config_option
@click.argument("ids", metavar="[ID]...", nargs=-1)
@conditions
@source_option
@all_option
@limit_option
@reason_option
@by_option
@dry_run_option
@yes_option
@output_choice
@click.pass_context
def discard(
    ctx: click.Context,
    config_file: Path,
    ids: tuple[str, ...],
    conditions: Conditions,
    source: str | None,
    everything: bool,
    limit: int | None,
    reason: str | None,
    by_whom: str | None,
    dry_run: bool,
    yes: bool,
    output: str | None,
) -> None:
    """Give messages up: no copy of them starts anything any more.

    IDs are keys or message ids; or name conditions, or --all. Conditions mean those that are exhausted or rejected;
    those that wait only by their id, or with --state waiting. Those that are counted are discarded, each if it still is
    as it was counted. A record of an exhaustion that nobody has acknowledged stays: see `exhausted ack`.

    \b
    Examples:  inbox-fleet messages discard order-4711 --reason "the order was cancelled"
               inbox-fleet messages discard --consumer invoices --type order.test --reason "test data" --dry-run
    """
    from consumers.config import load
    from consumers.loop import run_until_done
    from inbox.discards import DISCARDABLE

    why, by_whom, config = reason_given(reason, dry_run), operator_name(by_whom), load(config_file, needs=("database",))
    meant = run_until_done(
        find_out(
            config,
            ids,
            conditions,
            source=source,
            everything=everything,
            limit=limit,
            able=DISCARDABLE,
            changes=not dry_run,
            freezes=not dry_run,
        )
    )
    lines = writes_lines(output)
    say(meant, "discarded", lines=lines and dry_run)
    if dry_run:
        return
    confirmed(f"Discard {counted(meant.total)}?", yes=yes)
    code = run_until_done(_discard(config, meant.frozen, by_whom=by_whom, reason=why, lines=lines))
    ctx.exit(with_left_out(code, meant))


async def _discard(config: FleetConfig, frozen: Sequence[Seen], *, by_whom: str, reason: str, lines: bool) -> Exit:
    from consumers.operating import operating
    from inbox.discards import DiscardAnswer

    done = 0
    async with operating(config, changes=True) as connection:
        for seen in frozen:
            answer = await _discarded(connection, seen, by_whom=by_whom, reason=reason)
            done += answer is DiscardAnswer.DISCARDED
            if lines:
                identity = {"key": str(seen.key), "consumer": seen.consumer, "message_id": seen.message_id}
                write_line({"event": "message", **identity, "was": seen.state.value, "answer": answer.value})
            elif answer is not DiscardAnswer.DISCARDED:
                click.echo(
                    f"not discarded: {visible(seen.message_id, _ID_SHOWN)} ({seen.key}): {answer.value}", err=True
                )
    left = len(frozen) - done
    if lines:
        write_line({"event": "ended", "discarded": done, "left_as_they_are": left})
    else:
        click.echo(f"{counted(done)} discarded, {left:,} left as they are")
    return Exit.OK if not left else Exit.PARTIAL if done else Exit.FAILED


async def _discarded(connection: asyncpg.Connection[Any], seen: Seen, *, by_whom: str, reason: str) -> DiscardAnswer:
    """Discard one message; if a copy of it is in somebody's hands, come again a few times."""
    from inbox import Backoff
    from inbox.discards import DiscardAnswer
    from inbox.discards import discard as discard_one

    pauses = Backoff(first_s=0.1, longest_s=1.0)
    for _ in range(_TRIES - 1):
        answer = await discard_one(connection, seen, by_whom=by_whom, reason=reason)
        if answer is not DiscardAnswer.CONTENDED:
            return answer
        await asyncio.sleep(pauses.next_s())
    return await discard_one(connection, seen, by_whom=by_whom, reason=reason)
