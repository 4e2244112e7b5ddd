"""Which messages a command means: the options that say so, and what they lead to on record.

Ids or conditions, never both. What changes messages by conditions is about one consumer: a database may hold those of
other services, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from consumers.cli.output import visible

if TYPE_CHECKING:
    import asyncpg

    from consumers.config import FleetConfig
    from inbox.messages import Filter, Identity
    from inbox.states import State

F = TypeVar("F", bound=Callable[..., Any])

ON_RECORD = ("attempting", "waiting", "exhausted", "rejected", "discarded")
"""The states that a message on record can be in."""

_SHOWN = 10
_ID_SHOWN = 100


class Moment(click.ParamType[datetime | timedelta]):
    """A time, as ISO 8601 (UTC where it names no zone), or as a duration back from now."""

    name = "time"

    def convert(
        self, value: str | datetime | timedelta, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        """Return the time, or how long ago it was."""
        if not isinstance(value, str):
            return value
        from inbox import durations

        try:
            at = datetime.fromisoformat(value.strip())
            return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        except ValueError:
            pass
        try:
            return timedelta(seconds=durations.seconds(value))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time: write 2026-03-01T12:00+01:00 (UTC without a zone), or how long ago: 2h",
                param,
                ctx,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What was said on the command line about the messages that are meant."""

    consumer: str | None
    states: tuple[str, ...]
    types: tuple[str, ...]
    error_classes: tuple[str, ...]
    since: datetime | timedelta | None
    until: datetime | timedelta | None

    @property
    def is_given(self) -> bool:
        """Whether anything is said beside the consumer."""
        return bool(self.states or self.types or self.error_classes) or (self.since, self.until) != (None, None)


def conditions(function: F) -> F:
    """Add the options that choose messages; the command gets them as `conditions`."""

    @wraps(function)
    def gathered(*arguments: Any, **options: Any) -> Any:
        names = ("consumer", "states", "types", "error_classes", "since", "until")
        said = Conditions(**{name: options.pop(name) for name in names})
        return function(*arguments, conditions=said, **options)

    for option in reversed(
        (
            click.option("--consumer", metavar="NAME", help="Of this consumer only."),
            click.option("--state", "states", type=click.Choice(ON_RECORD), multiple=True, help="In this state."),
            click.option("--type", "types", metavar="TYPE", multiple=True, help="Of this type."),
            click.option(
                "--error-class",
                "error_classes",
                metavar="CLASS",
                multiple=True,
                help="Whose last attempt met this error: the whole name, or its part after the last dot.",
            ),
            click.option(
                "--since", type=Moment(), help="Changed at this time or later: ISO 8601, or 2h for two hours ago."
            ),
            click.option("--until", type=Moment(), help="Changed before this time."),
        )
    ):
        option(gathered)
    return gathered  # type: ignore[return-value]  # the same command, with its options gathered


def consumer_key(config: FleetConfig, name: str | None) -> str | None:
    """Return a consumer's name as it is on record. One that the configuration does not know may have been removed."""
    if name is None:
        return None
    known = config.consumers.get(name)
    if known is None and name not in {each.key_name for each in config.consumers.values()}:
        click.echo(f"note: {config.file} has no consumer {visible(name, _ID_SHOWN)!r}; asked for as it is", err=True)
    return name if known is None else known.key_name


def the_consumer(config: FleetConfig, name: str | None) -> str:
    """Return the one consumer that a change by conditions is about, as it is on record.

    :raises click.UsageError: none is named, and the configuration has several.
    """
    if name is None and len(config.consumers) != 1:
        raise click.UsageError(f"say which consumer's messages: --consumer {' or '.join(sorted(config.consumers))}")
    found = consumer_key(config, name if name is not None else next(iter(config.consumers)))
    assert found is not None  # a name was given
    return found


async def chosen(
    connection: asyncpg.Connection[Any],
    said: Conditions,
    *,
    consumer: str | None,
    otherwise: frozenset[State] | None = None,
) -> Filter:
    """Return what the conditions mean on record, by the database's clock.

    :param consumer: as it is on record.
    :param otherwise: the states that are meant where none is named.
    :raises click.UsageError: nothing can be meant by them.
    """
    from inbox.messages import Filter, clock
    from inbox.states import State

    now = await clock(connection)
    since, until = _at(said.since, now), _at(said.until, now)
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since has to be before --until")
    return Filter(
        consumer=consumer,
        states=frozenset(map(State, said.states)) or otherwise,
        types=frozenset(said.types) or None,
        error_classes=frozenset(said.error_classes) or None,
        since=since,
        until=until,
    )


def _at(moment: datetime | timedelta | None, now: datetime) -> datetime | None:
    if not isinstance(moment, timedelta):
        return moment
    try:
        return now - moment
    except OverflowError:
        raise click.UsageError("that is longer ago than there are dates") from None


async def identified(
    connection: asyncpg.Connection[Any], ids: Sequence[str], *, consumer: str | None, source: str | None
) -> list[Identity]:
    """Return the one message that each id names.

    :param ids: keys, or the message ids that senders gave.
    :param consumer: as it is on record.
    :raises click.ClickException: one names none or several; with exit code 6 or 2.
    """
    from inbox.messages import named

    found: dict[Any, Identity] = {}
    unknown: list[str] = []
    for each in ids:
        identities = await named(connection, each, consumer=consumer, source=source)
        if len(identities) > 1:
            raise click.UsageError(several(each, identities))
        if not identities:
            unknown.append(each)
        for identity in identities:
            found[identity.key] = identity
    if unknown:
        raise NotFound(f"no message on record is known by {listed(unknown)}")
    return list(found.values())


class NotFound(click.ClickException):
    """What was asked for does not exist."""

    exit_code = 6


def several(given: str, identities: Sequence[Identity]) -> str:
    """Say that an id names several messages, and how each can be named."""
    lines = [f"{len(identities)} messages are known by {visible(given, _ID_SHOWN)!r}: name one by its key"]
    for each in identities[:_SHOWN]:
        consumer, source = visible(each.consumer, _ID_SHOWN), visible(each.source, _ID_SHOWN)
        lines.append(f"  {each.key}  consumer {consumer}, source {source}")
    return "\n".join(lines + _more(len(identities)))


def listed(ids: Sequence[str]) -> str:
    """Return ids as one text, of which none obeys anything, and which ends."""
    return ", ".join([repr(visible(each, _ID_SHOWN)) for each in ids[:_SHOWN]] + _more(len(ids)))


def _more(number: int) -> list[str]:
    return [f"and {number - _SHOWN} more"] if number > _SHOWN else []
