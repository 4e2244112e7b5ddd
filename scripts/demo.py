"""The demo: exactly one effect for each of thousands of orders, with everything broken once while they are worked on.

Exit code 0: nothing lost, nothing doubled, nothing left in a queue but the dead letters that belong there, both
processes stopped in order. 1: something is wrong, and the last lines say what. 130: interrupted. See
`scripts/demo --help`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from deadlines import RunFailed
from demo_parts.brokers import MANAGEMENT_VARIABLE
from demo_parts.exhaustions import Exhaustions
from demo_parts.figures import Figures, complaints
from demo_parts.fleet import Fleet
from demo_parts.place import Place
from demo_parts.scenario import Scenario
from demo_parts.screen import Screen
from demo_parts.servers_in_use import servers_in_use
from demo_parts.shop_process import Shop
from demo_parts.witness import Evidence
from servers import Pair, ServerError, external_urls

CHECKOUT = Path(__file__).resolve().parent.parent
SCHEMA = CHECKOUT / "examples" / "orders" / "schema.sql"
_FEWEST, _MOST = 100, 99_999


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = _parser().parse_args(arguments)
    if not _FEWEST <= options.orders <= _MOST:
        _parser().error(f"--orders takes {_FEWEST} to {_MOST}: fewer are done before anything can be broken")
    screen = Screen(to_stderr=options.json)
    try:
        return asyncio.run(_demo(options, screen))
    except asyncio.CancelledError:
        screen.wrong("interrupted; nothing was counted")
        return 130
    except (RunFailed, ServerError) as error:
        screen.wrong(str(error))
        return 1


async def _demo(options: argparse.Namespace, screen: Screen) -> int:
    """Start the servers if they do not run, play, and clear up."""
    task = asyncio.current_task()
    assert task is not None, "this is the main task"
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    pair = Pair(options.pair) if options.pair is not None else Pair.named(CHECKOUT, "demo")
    with servers_in_use(pair) as servers:
        try:
            if not pair.runs and None in external_urls():
                screen.say("starting a private PostgreSQL and RabbitMQ where the environment names none: some 10 s")
            urls = await asyncio.to_thread(servers.start)
            if options.keep:
                servers.keep()
            return await _on(Place(pair, urls, CHECKOUT), screen, options)
        finally:
            await asyncio.to_thread(servers.stop_if_last)


async def _on(place: Place, screen: Screen, options: argparse.Namespace) -> int:
    """Play in a place and clear it; the logs stay if something was wrong."""
    logs_stay = True
    try:
        passed = await _said(place, screen, options)
        logs_stay = not passed
    except asyncio.CancelledError:
        logs_stay = False
        raise
    else:
        return 0 if passed else 1
    finally:
        if options.keep:
            screen.plain(place.description())
            if options.pair is None and external_urls() == (None, None):
                screen.plain("# scripts/services remove --name demo ends the servers and deletes all of it")
        else:
            if logs_stay and place.has_logs:
                screen.plain(f"logs and configuration of this run: {place.directory}")
            await place.clear(keep_directory=logs_stay and place.has_logs)


async def _said(place: Place, screen: Screen, options: argparse.Namespace) -> bool:
    """Play, and say what went wrong before the place is cleared, which may fail for the same cause."""
    passed = False
    try:
        passed = await _passes(place, screen, options)
    except* (RunFailed, ServerError) as failures:
        for failure in _leaves(failures):
            screen.wrong(str(failure))
    return passed


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _passes(place: Place, screen: Screen, options: argparse.Namespace) -> bool:
    """Play, count, show; return whether all is as it must be."""
    began = time.monotonic()
    await place.database.create(SCHEMA.read_text(encoding="utf-8"))
    await asyncio.to_thread(place.broker.prepare)
    fleet = Fleet(
        place.directory,
        service=place.service,
        queue=place.queue,
        database_url=place.database.url,
        amqp_url=place.broker.url,
    )
    shop = Shop(place.broker.url, queue=place.queue, name=place.service, orders=options.orders)
    _, queues = await asyncio.gather(fleet.migrate(), fleet.queues())
    place.queues = queues.names
    await fleet.apply_topology()
    screen.say(f"two processes start on queue {place.queue}; a foreign client publishes {options.orders:,} orders")
    scenario = Scenario(
        fleet=fleet,
        shop=shop,
        database=place.database,
        broker=place.broker,
        service=place.service,
        queue=place.queue,
        queues=queues,
        screen=screen,
    )
    with screen.working(copies=sum(step.at_once for step in shop.steps), orders=options.orders):
        ending = await scenario.play()
    evidence = Evidence.read(place.directory)
    figures = Figures.count(
        published=shop.published,
        orders=shop.orders,
        effects=ending.effects,
        letters=ending.letters,
        evidence=evidence,
        seconds=time.monotonic() - began,
    )
    exhaustions = Exhaustions(
        hit=shop.hit,
        rows={one.key: one.order for one in ending.exhausted},
        letters=ending.letters,
        replayed=evidence.replayed,
    )
    found = complaints(figures, exhaustions=exhaustions, left=ending.left, exit_codes=ending.exit_codes)
    if ending.problem is not None:
        found.append(ending.problem)
    screen.table(figures, evidence)
    screen.verdict(figures, found)
    if options.json:
        print(figures.json(), flush=True)
    return not found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Two fleet processes work on the orders that a foreign client publishes, many of them twice and "
        "more. Meanwhile one process is killed, the broker's connections are closed, and the database's sessions are "
        "terminated. Three orders hit a bug of the handler and end exhausted, one of which kills its process each "
        "time; the fix is deployed, and they are replayed. Then everything is counted, outside of the product.",
        epilog="DATABASE_URL and AMQP_URL name servers to be used; otherwise private ones are started. On either the "
        "demo works in a database and on queues of its own, and removes them. On a broker that AMQP_URL names, "
        f"connections can be closed only where {MANAGEMENT_VARIABLE} leads to its HTTP API.",
    )
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object, the last line of stdout")
    parser.add_argument("--keep", action="store_true", help="leave servers, database, queues and logs, and print where")
    parser.add_argument("--orders", type=int, default=3000, metavar="N", help="how many orders (default: 3000)")
    parser.add_argument(
        "--pair", type=Path, metavar="FOLDER", help="folder of the private servers (default: .services/demo)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
