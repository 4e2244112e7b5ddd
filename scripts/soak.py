"""The soak: a fleet that works while everything is broken again and again, judged from the outside.

Exit code 0: every message came to its one right end. 1: something is wrong, with the messages it is wrong of and their
stories, or the run could not be played. 130: interrupted. See `scripts/soak --help`.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.text import Text

from deadlines import RunFailed
from servers import ServerError
from soak_parts.judge import judge
from soak_parts.place import Place
from soak_parts.report import Report
from soak_parts.scenario import Scenario, faults_done

_SHORTEST_MINUTES = 0.5
_MOST_STORIES = 10
_WIDTH = 160


def main(arguments: list[str] | None = None) -> int:
    """Run the soak and return its exit code."""
    options = _parser().parse_args(arguments)
    if options.minutes < _SHORTEST_MINUTES:
        _parser().error(f"--minutes takes {_SHORTEST_MINUTES:g} or more: in less nothing comes to its end")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDTH
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    began = time.monotonic()

    def say(what: str) -> None:
        console.print(Text(f"{time.monotonic() - began:6.1f} s  {what}"))

    code = 1
    try:
        code = asyncio.run(_soak(options, seed, say))
    except* asyncio.CancelledError:
        say("interrupted; nothing was judged")
        code = 130
    except* (RunFailed, ServerError) as failures:
        for failure in _leaves(failures):
            say(f"WRONG: {failure}")
    return code


async def _soak(options: argparse.Namespace, seed: int, say: Callable[[str], None]) -> int:
    task = asyncio.current_task()
    assert task is not None, "this is the main task"
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    say(f"seed {seed}; starting a private PostgreSQL and RabbitMQ: some 10 s")
    place = Place()
    logs_stay = True
    try:
        async with place:
            scenario = Scenario(place, seed=seed, seconds=60 * options.minutes, rate=options.rate, say=say)
            facts = await scenario.play()
            complaints = judge(facts)
            wrong = sorted({of for complaint in complaints for of in complaint.ids[:_MOST_STORIES]})
            report = Report(
                seed=seed,
                seconds=scenario.seconds,
                facts=facts,
                confirmed=scenario.sender.confirmed,
                faults=faults_done(scenario.strikes),
                events=scenario.logs.events,
                complaints=complaints,
                stories=await place.ledger.stories(wrong[:_MOST_STORIES]),
            )
        if options.output == "json":
            print(report.json(), flush=True)
        else:
            report.show(Console(highlight=False))
        logs_stay = bool(complaints)
    except asyncio.CancelledError:
        logs_stay = False
        raise
    else:
        return 1 if complaints else 0
    finally:
        if logs_stay or options.keep:
            say(f"logs and configuration of this run: {place.directory}")
        else:
            place.forget()


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description="Three fleet processes work on messages of every kind, many of them published several times: some "
        "fail now and then, some always, some take too long, some kill their process. Meanwhile processes are killed, "
        "stopped and frozen, lines cut and silenced, database and broker restarted and killed, and an operator replays "
        "what has ended, and discards some of it. Then all is made whole, and each message has to have come to its one "
        "right end.",
        epilog="It works on servers of its own, whatever DATABASE_URL and AMQP_URL name, and removes them. The same "
        "seed publishes the same messages and breaks the same things in the same order.",
    )
    parser.add_argument("--minutes", type=float, default=2.0, metavar="N", help="how long it is broken (default: 2)")
    parser.add_argument("--seed", type=int, metavar="S", help="makes messages and faults (default: any)")
    parser.add_argument("--rate", type=float, default=40.0, metavar="R", help="messages a second (default: 40)")
    parser.add_argument("--keep", action="store_true", help="leave logs and configuration of a run that went well, too")
    parser.add_argument(
        "--output",
        choices=("table", "json"),
        default="table" if sys.stdout.isatty() else "json",
        help="form of the result on stdout (default: a table on a terminal, else JSON)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
