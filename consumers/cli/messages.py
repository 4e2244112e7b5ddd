"""`inbox-fleet messages`: find messages on record, and say what happened to one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumers.cli.choosing import Conditions, NotFound, chosen, conditions, consumer_key, several
from consumers.cli.discard import discard
from consumers.cli.exits import Exit
from consumers.cli.options import config_option, output_option
from consumers.cli.output import visible, write_json, write_line, write_table
from consumers.cli.replay import replay

if TYPE_CHECKING:
    from consumers.config import FleetConfig
    from inbox.messages import Identity, MessageRow, Story

_PAGE = 1_000
_ID_SHOWN = 100
_TEXT_SHOWN = 500
_TRACE_SHOWN = 10_000


@click.group()
def messages() -> None:
    """Find messages on record, tell what happened to one, replay or discard them.

    On record is what did not succeed at once. All of this needs the database alone, and works while the fleet runs
    and while it is down.
    """


messages.add_command(replay)
messages.add_command(discard)


@messages.command("list")
@config_option
@conditions
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@output_option
def list_(config_file: Path, conditions: Conditions, limit: int, output: str) -> None:
    """List messages on record, the one whose last change is oldest first.

    Of all consumers in the database, if none is named. JSON is one object a line.

    \b
    Examples:  inbox-fleet messages list --state exhausted --since 2h
               inbox-fleet messages list --consumer invoices --error-class TaxError --output json
    """
    from consumers.config import load
    from consumers.loop import run_until_done

    config = load(config_file, needs=("database",))
    run_until_done(_list(config, conditions, limit, output))


async def _list(config: FleetConfig, said: Conditions, limit: int, output: str) -> None:
    from consumers.operating import operating
    from inbox.messages import find

    async with operating(config, changes=False) as connection:
        filter_ = await chosen(connection, said, consumer=consumer_key(config, said.consumer))
        left, page = limit, await find(connection, filter_, limit=min(_PAGE, limit))
        if not page:
            click.echo("no message on record is meant by this", err=True)
        while page:
            _write_page(page, output)
            left -= len(page)
            page = await find(connection, filter_, after=page[-1], limit=min(_PAGE, max(left, 1)))
            if left <= 0:
                if page:
                    click.echo(f"There are more than {limit}: see --limit, or name more conditions", err=True)
                break


def _write_page(page: list[MessageRow], output: str) -> None:
    from consumers.timeline import written

    if output == "json":
        import msgspec

        for row in page:
            write_line(msgspec.to_builtins(row))
        return
    rows = [
        (
            written(row.changed_at),
            row.state.value,
            visible(row.consumer, _ID_SHOWN),
            visible(row.message_id, _ID_SHOWN),
            visible(row.type, _ID_SHOWN),
            f"{row.attempts}" if row.generation == 1 else f"{row.attempts} in generation {row.generation}",
            visible(row.error_class or "", _ID_SHOWN),
            str(row.key),
        )
        for row in page
    ]
    write_table(("last change", "state", "consumer", "message id", "type", "attempts", "error", "key"), rows)


@messages.command()
@config_option
@click.argument("message_id", metavar="ID")
@click.option("--consumer", metavar="NAME", help="Of this consumer, if several have a message of that id.")
@click.option("--source", metavar="SOURCE", help="From this source, if several have sent one.")
@click.option("--trace", is_flag=True, help="Show the traceback of each error, too.")
@click.option(
    "--body",
    "body_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the bytes of the message, as they were received, to a file that does not exist yet. Exit code 3 means "
    "that it has no more than the first ones: the message was too large.",
)
@output_option
@click.pass_context
def show(
    ctx: click.Context,
    config_file: Path,
    message_id: str,
    consumer: str | None,
    source: str | None,
    trace: bool,
    body_file: Path | None,
    output: str,
) -> None:
    """Tell what happened to one message, and what becomes of it.

    ID is its key, or the message id that its sender gave it; put -- before one that begins with a dash. A message that
    was processed at once has left nothing but its receipt, which is found by --source and its id, or by its key.

    \b
    Examples:  inbox-fleet messages show order-4711
               inbox-fleet messages show order-4711 --consumer invoices --source shop
               inbox-fleet messages show --trace --body order.bin order-4711
    """
    from consumers.config import load
    from consumers.loop import run_until_done

    config = load(config_file, needs=("database",))
    told, body = run_until_done(_show(config, message_id, consumer, source, with_body=body_file is not None))
    if body_file is not None:
        _save(body_file, body)
    if output == "json":
        write_json(_described(told, trace))
    else:
        _tell(config, told, trace)
    if body_file is not None and told.row is not None and not told.row.is_whole:
        click.echo(f"{visible(str(body_file))} has but the beginning of the body: {_body(config, told.row)}", err=True)
        ctx.exit(Exit.PARTIAL)


async def _show(
    config: FleetConfig, given: str, consumer: str | None, source: str | None, *, with_body: bool
) -> tuple[Story, bytes | None]:
    from consumers.operating import operating
    from inbox.messages import body, named, story

    key_name = consumer_key(config, consumer)
    async with operating(config, changes=False) as connection:
        identities = await named(connection, given, consumer=key_name, source=source)
        if len(identities) > 1:
            raise click.UsageError(several(given, identities))
        for identity in identities or _receipts(config, given, key_name, source):
            found = await story(connection, identity)
            if found is not None:
                return found, await body(connection, identity.key) if with_body else None
    advice = (
        "" if source is not None else "; one that was processed at once is found by its --source and id, or by its key"
    )
    raise NotFound(f"no message is known by {visible(given, _ID_SHOWN)!r}{advice}")


def _receipts(config: FleetConfig, given: str, consumer: str | None, source: str | None) -> list[Identity]:
    """Return which messages may be meant of which only a receipt can be there."""
    from uuid import UUID

    from inbox import message_key
    from inbox.messages import Identity

    consumers = [consumer] if consumer is not None else sorted(each.key_name for each in config.consumers.values())
    if source is not None:
        return [
            Identity(key=message_key(each, source, given), consumer=each, source=source, message_id=given)
            for each in consumers
        ]
    try:
        return [Identity(key=UUID(given), consumer="", source="", message_id="")]
    except ValueError:
        return []


def _save(file: Path, body: bytes | None) -> None:
    if body is None:
        raise click.ClickException("its bytes are not kept: it was processed, or its time on record is over")
    try:
        with file.open("xb") as target:
            target.write(body)
    except FileExistsError:
        raise click.UsageError(f"--body: {visible(str(file))} exists, and is not written over") from None


def _described(told: Story, trace: bool) -> dict[str, Any]:
    import msgspec

    from consumers.timeline import prospect, standing

    described: dict[str, Any] = msgspec.to_builtins(told)
    if not trace:
        for attempt in described["attempts"]:
            del attempt["error_trace"]
    return {**described.pop("identity"), "state": standing(told), "prospect": prospect(told), **described}


def _body(config: FleetConfig, row: MessageRow) -> str:
    """Return how large a message's body is and, if not all of it is on record, where it is."""
    if row.is_whole:
        return f"{row.body_bytes} bytes"
    from consumers.config.checks import dead_letter_queue

    queues = [each.queue for each in config.consumers.values() if each.key_name == row.consumer]
    where = dead_letter_queue(queues[0]) if queues else "its consumer's queue for dead letters"
    kept = f"the first {row.kept_bytes} on record; the whole went to {where}"
    return f"{row.body_bytes} bytes, {kept}, sha256 {row.body_sha256}"


def _tell(config: FleetConfig, told: Story, trace: bool) -> None:
    from consumers.timeline import prospect, standing, timeline, written

    identity, row = told.identity, told.row
    facts = [
        ("message", identity.message_id or "(its id is not known)"),
        ("key", str(identity.key)),
        ("consumer", identity.consumer or "(not known)"),
        ("source", identity.source),
        ("type", told.type or ""),
        ("state", standing(told)),
        ("generation", "" if row is None else str(row.generation)),
        ("body", "" if row is None else _body(config, row)),
        ("next", prospect(told)),
    ]
    for name, value in facts:
        if value:
            click.echo(f"{name:<11} {visible(value, _TEXT_SHOWN)}")
    click.echo()
    for line in timeline(told):
        click.echo(f"{written(line.at)}  {visible(line.what)}  {visible(line.detail, _TEXT_SHOWN)}")
        if trace and line.trace is not None:
            for each in line.trace[-_TRACE_SHOWN:].splitlines():
                click.echo(f"    {visible(each)}")
