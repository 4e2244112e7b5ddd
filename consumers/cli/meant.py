"""What a command is going to change: found out first, said, and asked about on a terminal; then it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from consumers.cli.choosing import Conditions, NotFound, chosen, consumer_key, identified, the_consumer
from consumers.cli.exits import Exit
from consumers.cli.output import visible, write_line

if TYPE_CHECKING:
    from consumers.config import FleetConfig
    from inbox.discards import Seen
    from inbox.messages import Filter, MessageRow
    from inbox.states import State

_SHOWN = 5
_ID_SHOWN = 100

reason_option = click.option("--reason", metavar="TEXT", help="Why, for the record. Needed, except for a dry run.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what is meant, and do nothing.")
all_option = click.option("--all", "everything", is_flag=True, help="All that are exhausted.")
source_option = click.option("--source", metavar="SOURCE", help="With ids: from this source, if several have sent one.")
limit_option = click.option("--limit", type=click.IntRange(min=1), help="At most so many, the oldest first.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """Which messages a command is going to change.

    :param counts: how many, by state.
    :param first: the first of them.
    :param left_out: those named by id that cannot be changed so.
    :param frozen: each of them as it was counted, if that was asked for; else none.
    """

    filter: Filter
    counts: Mapping[State, int]
    first: Sequence[MessageRow]
    left_out: Sequence[MessageRow]
    frozen: Sequence[Seen] = ()

    @property
    def total(self) -> int:
        """How many they are."""
        return sum(self.counts.values())


def reason_given(reason: str | None, dry_run: bool) -> str:
    """Return why it is done; a dry run needs no reason.

    :raises click.UsageError: there is none.
    """
    if (reason is None and not dry_run) or (reason is not None and not reason.strip()):
        raise click.UsageError("say why, for the record: --reason TEXT")
    return (reason or "").strip()


async def find_out(
    config: FleetConfig,
    ids: Sequence[str],
    said: Conditions,
    *,
    source: str | None,
    everything: bool,
    limit: int | None,
    able: frozenset[State],
    changes: bool,
    freezes: bool = False,
) -> Meant:
    """Find out which messages are meant, without changing any.

    :param able: the states in which they can be changed.
    :param changes: whether they are going to be; a dry run needs no privilege to change anything.
    :param freezes: whether each of them is kept as it is counted.
    :raises click.ClickException: nothing was said, too much was said, or nothing is meant by it.
    """
    from consumers.operating import operating
    from inbox.discards import freeze
    from inbox.messages import REPLAYABLE, Filter, count, find
    from inbox.states import State

    if sum((bool(ids), said.is_given, everything)) != 1:
        raise click.UsageError("say which messages: their ids, or conditions beside --consumer, or --all; one of these")
    if source is not None and not ids:
        raise click.UsageError("--source goes with ids")
    async with operating(config, changes=changes) as connection:
        left_out: list[MessageRow] = []
        if ids:
            key_name = consumer_key(config, said.consumer)
            keys = {each.key for each in await identified(connection, ids, consumer=key_name, source=source)}
            filter_ = Filter(keys=frozenset(keys), states=able)
            named = await find(connection, Filter(keys=frozenset(keys)), limit=len(keys))
            left_out = [row for row in named if row.state not in able]
        else:
            consumer = the_consumer(config, said.consumer)
            otherwise = frozenset({State.EXHAUSTED}) if everything else REPLAYABLE
            filter_ = await chosen(connection, said, consumer=consumer, otherwise=otherwise)
            if not (filter_.states or able) & able:
                raise click.UsageError(f"--state has to be one of these: {', '.join(sorted(able))}")
            filter_ = replace(filter_, states=(filter_.states or able) & able)
        # One snapshot: what is said to the person, and kept, is one set.
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            counts = await count(connection, filter_, limit=limit)
            first = await find(connection, filter_, limit=min(_SHOWN, limit or _SHOWN))
            frozen = await freeze(connection, filter_, limit=limit) if freezes else []
    meant = Meant(filter=filter_, counts=counts, first=first, left_out=left_out, frozen=frozen)
    if not meant.total and ids:
        raise click.ClickException(
            "; ".join(_left_out(row) for row in left_out) or "none of them is on record any more"
        )
    if not meant.total:
        raise NotFound("no message on record is meant by this")
    return meant


def _left_out(row: MessageRow) -> str:
    ends = " and is tried again by itself" if row.state.value == "waiting" else ""
    return f"{visible(row.message_id, _ID_SHOWN)} ({row.key}) is {row.state.value}{ends}"


def say(meant: Meant, verb: str, *, lines: bool) -> None:
    """Say what is meant: as data for a dry run that writes JSON, else to the person."""
    import msgspec

    if lines:
        counts = {state.value: number for state, number in meant.counts.items()}
        write_line(
            {"event": "dry_run", "total": meant.total, "states": counts, "first": msgspec.to_builtins(meant.first)}
        )
        return
    for row in meant.left_out:
        click.echo(f"not {verb}: {_left_out(row)}", err=True)
    by_state = ", ".join(f"{number} {state.value}" for state, number in meant.counts.items())
    click.echo(f"{counted(meant.total)} to be {verb} ({by_state}); the first:", err=True)
    for row in meant.first:
        error = f", {row.error_class}" if row.error_class is not None else ""
        told = f"{row.consumer}, {row.message_id}, {row.type}, {row.state.value}{error}"
        click.echo(f"  {row.key}  {visible(told, 3 * _ID_SHOWN)}", err=True)


def counted(number: int) -> str:
    """Return a number of messages in words."""
    return f"{number:,} message{'' if number == 1 else 's'}"


def with_left_out(code: Exit, meant: Meant) -> Exit:
    """Return the exit code of a change that may have left out some of what was named."""
    return Exit.PARTIAL if code is Exit.OK and meant.left_out else code
