"""A replay job in the foreground: how far it is, how it ended, and what to do next.

A bar on a terminal, one JSON object a line otherwise. Ctrl-C once leaves the job in order, and resumable.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from consumers.cli.exits import Exit
from consumers.cli.output import visible, write_line, write_table

if TYPE_CHECKING:
    from uuid import UUID

    from consumers.config import FleetConfig
    from inbox.replay_job import Progress
    from inbox.replays import Replay, ReplayItem

F = TypeVar("F", bound=Callable[..., Any])

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|m|h))?")
_PER = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DETAIL_SHOWN = 200


class Rate(click.ParamType[float]):
    """Messages in a time: 50, 50/s, 10/m, 100/h."""

    name = "rate"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return messages a second."""
        if isinstance(value, float):
            return value
        match = _RATE.fullmatch(value.strip())
        rate = float(match[1]) / _PER[match[2] or "s"] if match is not None else 0.0
        if not 0 < rate < float("inf"):
            self.fail(f"{value!r} is no rate: write 50/s, 10/m or 100/h", param, ctx)
        return rate


def pace(function: F) -> F:
    """Add the options that say how fast a job runs, and when it stops by itself."""
    ratio = click.option(
        "--stop-on-failure-ratio",
        "stop_ratio",
        type=click.FloatRange(0, 1, max_open=True),
        callback=_no_nan,
        metavar="SHARE",
        help="Stop once more than this share of the replayed messages has failed again, such as 0.2.",
    )
    return click.option("--rate", type=Rate(), metavar="N/s", help="At most so many: 50/s, 10/m, 100/h.")(
        ratio(function)
    )


def _no_nan(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and value != value:  # the range lets it through
        raise click.BadParameter("it is not a number")
    return value


output_choice = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default=None,
    show_default="a progress bar on a terminal, JSON lines otherwise",
    help="How data is written to stdout.",
)


def writes_lines(output: str | None) -> bool:
    """Return whether stdout gets JSON lines, by --output or because nobody watches."""
    return output == "json" or (output is None and not sys.stdout.isatty())


def carry_out(config: FleetConfig, replay_id: UUID, *, by_whom: str, lines: bool) -> Exit:
    """Run a job to its end, to its bound on failures, or until Ctrl-C, and say what came of it.

    :param by_whom: who runs it.
    :param lines: whether stdout gets JSON lines.
    :raises ReplayMissing, ReplayBusy, ReplayOver: see `inbox.replay_job.run`.
    """
    from consumers.errors import DatabaseUnavailable
    from consumers.loop import run_until_done

    runner = f"{by_whom} (pid {os.getpid()} on {socket.gethostname()})"
    try:
        with _told(lines) as progress:
            replay = run_until_done(_run(config, replay_id, runner, progress))
    except KeyboardInterrupt:
        return _interrupted(config, replay_id)
    except (DatabaseUnavailable, TimeoutError):
        click.echo(_resume(config, replay_id), err=True)
        raise
    if replay.state.value == "running":
        return _interrupted(config, replay_id)
    if lines:
        write_line({"event": "ended", **described(replay)})
    return _ended(config, replay, lines)


async def _run(config: FleetConfig, replay_id: UUID, runner: str, progress: Callable[[Progress], None]) -> Replay:
    from consumers.operating import operating
    from inbox import replay_job

    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop_once() -> None:
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C does not wait for what runs
        stop.set()

    async with operating(config, changes=True) as connection:
        loop.add_signal_handler(signal.SIGINT, stop_once)
        return await replay_job.run(connection, replay_id, runner=runner, progress=progress, stop=stop)


def _interrupted(config: FleetConfig, replay_id: UUID) -> Exit:
    click.echo(
        "Interrupted: what was replayed stays so, the rest is as it was.\n" + _resume(config, replay_id), err=True
    )
    return Exit.INTERRUPTED


@contextmanager
def _told(lines: bool) -> Iterator[Callable[[Progress], None]]:
    """Tell of a run while it goes on; a bar goes to stderr, since it is no data."""
    if lines:
        yield _line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[fates]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None, fates="")

        def tell(progress: Any) -> None:
            fates = f"{progress.processed} processed, {progress.failed_again} failed again"
            bar.update(task, completed=progress.done, total=progress.total, fates=fates)

        yield tell


def _line(progress: Progress) -> None:
    far = {"done": progress.done, "total": progress.total}
    fates = {"processed": progress.processed, "failed_again": progress.failed_again}
    if progress.item is None:
        write_line({"event": "fates", **far, **fates})
    else:
        write_line({"event": "item", **described_item(progress.item), **far, **fates})


def described_item(item: ReplayItem) -> dict[str, Any]:
    """Return one item of a job for JSON."""
    return {
        "position": item.position,
        "key": str(item.key),
        "consumer": item.consumer,
        "message_id": item.message_id,
        "generation": item.generation,
        "outcome": item.outcome.value,
        "detail": item.detail,
        "fate": item.fate,
    }


def described(replay: Replay) -> dict[str, Any]:
    """Return a job for JSON."""
    import msgspec

    described: dict[str, Any] = msgspec.to_builtins(replay)
    return described


def summary(replay: Replay) -> str:
    """Return where a job stands, in one line."""
    counts = f"{replay.replayed} replayed, {replay.skipped} skipped, {replay.failed} failed, {replay.pending} pending"
    fates = f"of those replayed {replay.processed} processed so far, {replay.failed_again} failed again"
    return f"replay {replay.id} is {state_of(replay)}: {counts}; {fates}"


def state_of(replay: Replay) -> str:
    """Return a job's state; one that runs without anybody who runs it was interrupted."""
    return "interrupted" if replay.state.value == "running" and not replay.is_run else replay.state.value


def table_of_items(items: list[ReplayItem]) -> None:
    """Write items of a job as a table."""
    rows = [
        (
            str(item.position),
            item.consumer,
            visible(item.message_id, 100),
            item.outcome.value,
            visible(item.detail or "", _DETAIL_SHOWN),
            item.fate or ("not known yet" if item.outcome.value == "replayed" else ""),
            str(item.key),
        )
        for item in items
    ]
    write_table(("", "consumer", "message id", "outcome", "detail", "since then", "key"), rows)


def _ended(config: FleetConfig, replay: Replay, lines: bool) -> Exit:
    if not lines:
        click.echo(summary(replay))
    if replay.skipped or replay.failed:
        click.echo(f"What was left out, and why: inbox-fleet replays show {replay.id}{_file(config)}", err=True)
    match replay.state.value:
        case "stopped":
            why = f"more than {replay.stop_ratio:g} of the messages failed again"
            click.echo(f"Stopped: {why}; see `messages show` of one of them.\n" + _resume(config, replay.id), err=True)
            return Exit.PARTIAL
        case "cancelled":
            click.echo(
                f"Cancelled by {visible(replay.cancelled_by or '', 100)}: {replay.pending} stay as they are", err=True
            )
            return Exit.PARTIAL
    if replay.replayed == replay.total:
        return Exit.OK
    return Exit.PARTIAL if replay.replayed else Exit.FAILED


def _resume(config: FleetConfig, replay_id: UUID) -> str:
    return f"Go on by: inbox-fleet replays resume {replay_id}{_file(config)}"


def _file(config: FleetConfig) -> str:
    import shlex

    return "" if Path(config.file) == Path("fleet.toml") else f" --config {shlex.quote(config.file)}"
