"""`inbox-fleet exhausted`: records of exhausted messages, each of which waits for somebody to acknowledge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from consumers.cli.choosing import NotFound, consumer_key, the_consumer
from consumers.cli.exits import Exit
from consumers.cli.options import by_option, config_option, confirmed, operator_name, output_option, yes_option
from consumers.cli.output import visible, write_line, write_table

if TYPE_CHECKING:
    from consumers.config import FleetConfig
    from inbox.exhaustions import Answer, Exhaustion, ExhaustionState

STATES = ("waiting", "trying", "stuck", "acknowledged")
_OPEN = STATES[:-1]
_PAGE = 500
_TEXT_SHOWN = 100

state_option = click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="In this state.  [default: all but acknowledged]",
)
all_option = click.option("--all", "everything", is_flag=True, help="All records of the consumer that are open.")
consumer_option = click.option("--consumer", metavar="NAME", help="With --all or --state: of this consumer.")
open_state_option = click.option(
    "--state", "states", type=click.Choice(_OPEN), multiple=True, help="All records of the consumer in this state."
)


@click.group()
def exhausted() -> None:
    """List the records of exhausted messages, acknowledge them, or let their handler try again.

    Each exhaustion leaves a record that is open until somebody acknowledges it: the consumer's on_exhausted handler, or
    an operator. A stuck one waits for an operator: its handler has failed as often as it may.
    """


@exhausted.command("list")
@config_option
@click.option("--consumer", metavar="NAME", help="Of this consumer only.")
@state_option
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@output_option
def list_(config_file: Path, consumer: str | None, states: tuple[str, ...], limit: int, output: str) -> None:
    """List records, the oldest first. JSON is one object a line.

    \b
    Examples:  inbox-fleet exhausted list
               inbox-fleet exhausted list --consumer invoices --state stuck --output json
    """
    from consumers.config import load
    from consumers.loop import run_until_done

    config = load(config_file, needs=("database",))
    found = run_until_done(_found(config, consumer_key(config, consumer), states, limit + 1))
    _write(found[:limit], output)
    if not found:
        click.echo("no record is meant by this", err=True)
    elif len(found) > limit:
        click.echo(f"There are more than {limit}: see --limit", err=True)


async def _found(
    config: FleetConfig, consumer: str | None, states: Sequence[str], limit: int | None
) -> list[Exhaustion]:
    from consumers.operating import operating
    from inbox.exhaustions import ExhaustionState, find

    found: list[Exhaustion] = []
    wanted: list[ExhaustionState] | None = [ExhaustionState(state) for state in states] or None
    async with operating(config, changes=False) as connection:
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            last = found[-1] if found else None
            page = await find(connection, consumer=consumer, states=wanted, after=last, limit=size)
            if not page:
                break
            found += page
    return found


def _write(found: list[Exhaustion], output: str) -> None:
    from consumers.timeline import written

    if output == "json":
        import msgspec

        for record in found:
            write_line(msgspec.to_builtins(record))
    elif found:
        rows = [
            (
                written(record.exhausted_at),
                record.state.value,
                visible(record.consumer, _TEXT_SHOWN),
                visible(record.message_id, _TEXT_SHOWN),
                record.reason,
                visible(record.error_class or "", _TEXT_SHOWN),
                str(record.tries),
                visible(record.try_error or record.acknowledged_by or "", _TEXT_SHOWN),
                str(record.id),
            )
            for record in found
        ]
        columns = ("exhausted", "state", "consumer", "message id", "used up", "error", "tries", "last try", "record")
        write_table(columns, rows)


@exhausted.command()
@config_option
@click.argument("records", metavar="[RECORD]...", type=click.UUID, nargs=-1)
@consumer_option
@open_state_option
@all_option
@by_option
@yes_option
@output_option
@click.pass_context
def ack(
    ctx: click.Context,
    config_file: Path,
    records: tuple[UUID, ...],
    consumer: str | None,
    states: tuple[str, ...],
    everything: bool,
    by_whom: str | None,
    yes: bool,
    output: str,
) -> None:
    """Acknowledge records in your name: their handler gets them no more. The messages stay exhausted.

    \b
    Examples:  inbox-fleet exhausted ack 3f2504e0-4f89-11d3-9a0c-0305e82c3301
               inbox-fleet exhausted ack --consumer invoices --state stuck
    """
    from consumers.config import load
    from consumers.loop import run_until_done

    by_whom, config = operator_name(by_whom), load(config_file, needs=("database",))
    ids = _chosen(config, records, consumer, states, everything=everything)
    if not records:
        confirmed(f"Acknowledge {len(ids)} records?", yes=yes)
    ctx.exit(_answered(run_until_done(_acknowledge(config, ids, by_whom)), "acknowledged", output))


@exhausted.command()
@config_option
@click.argument("records", metavar="[RECORD]...", type=click.UUID, nargs=-1)
@consumer_option
@open_state_option
@all_option
@yes_option
@output_option
@click.pass_context
def retry(
    ctx: click.Context,
    config_file: Path,
    records: tuple[UUID, ...],
    consumer: str | None,
    states: tuple[str, ...],
    everything: bool,
    yes: bool,
    output: str,
) -> None:
    """Let the on_exhausted handler try records anew: at once, and with all its tries.

    \b
    Examples:  inbox-fleet exhausted retry 3f2504e0-4f89-11d3-9a0c-0305e82c3301
               inbox-fleet exhausted retry --consumer invoices --state stuck
    """
    from consumers.config import load
    from consumers.loop import run_until_done

    config = load(config_file, needs=("database",))
    ids = _chosen(config, records, consumer, states, everything=everything)
    if not records:
        confirmed(f"Let {len(ids)} records be tried anew?", yes=yes)
    ctx.exit(_answered(run_until_done(_retry(config, ids)), "tried anew", output))


def _chosen(
    config: FleetConfig, records: tuple[UUID, ...], consumer: str | None, states: tuple[str, ...], *, everything: bool
) -> list[UUID]:
    """Return the records that are meant.

    :raises click.ClickException: nothing was said, too much was said, or nothing is meant by it.
    """
    from consumers.loop import run_until_done

    if sum((bool(records), bool(states), everything)) != 1 or (records and consumer is not None):
        raise click.UsageError("say which records: their ids, or --state, or --all, the latter perhaps with --consumer")
    if records:
        return list(dict.fromkeys(records))
    found = run_until_done(_found(config, the_consumer(config, consumer), states, None))
    if not found:
        raise NotFound("no record is meant by this")
    return [record.id for record in found]


async def _acknowledge(config: FleetConfig, ids: Sequence[UUID], by_whom: str) -> Mapping[UUID, Answer]:
    from consumers.operating import operating
    from inbox.exhaustions import acknowledge

    answers: dict[UUID, Answer] = {}
    async with operating(config, changes=True) as connection:
        for at in range(0, len(ids), _PAGE):
            answers |= await acknowledge(connection, ids[at : at + _PAGE], by_whom=by_whom)
    return answers


async def _retry(config: FleetConfig, ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
    from consumers.operating import operating
    from inbox.exhaustions import retry

    answers: dict[UUID, Answer] = {}
    async with operating(config, changes=True) as connection:
        for at in range(0, len(ids), _PAGE):
            answers |= await retry(connection, ids[at : at + _PAGE])
    return answers


def _answered(answers: Mapping[UUID, Answer], done: str, output: str) -> Exit:
    from inbox.exhaustions import Answer

    sentences = {
        Answer.BUSY: "its handler is running, and may acknowledge it: ask again",
        Answer.ACKNOWLEDGED: "it was acknowledged before",
        Answer.MISSING: "there is no such record",
    }
    for record_id, answer in answers.items():
        if output == "json":
            write_line({"id": str(record_id), "answer": answer.value})
        elif answer is not Answer.DONE:
            click.echo(f"{record_id}: {sentences[answer]}", err=True)
    number = sum(answer is Answer.DONE for answer in answers.values())
    if output == "table":
        click.echo(f"{number} of {len(answers)} {done}")
    if number == len(answers):
        return Exit.OK
    if number:
        return Exit.PARTIAL
    return Exit.NOT_FOUND if set(answers.values()) == {Answer.MISSING} else Exit.FAILED
