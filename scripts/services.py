"""Command line of the private servers: start, stop, remove, status, env. See `scripts/services --help`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from servers import Pair, ServerError, Urls, external_urls
from servers.rabbit_install import require_programs

CHECKOUT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Carry out one command and return the exit code: 0 done, 1 failed or (status, env) not running."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "prepare":
            require_programs()
            return 0
        if options.command == "start":
            return _show(Pair.named(CHECKOUT, options.name).start(postgres_version=options.postgres))
        pair = Pair.looked_up(CHECKOUT, options.name)
        if options.command == "stop":
            pair.stop()
            return 0
        if options.command == "remove":
            pair.remove()
            return 0
        urls = pair.urls()
        if options.command == "status":
            _name_others(options.name)
    except ServerError as error:
        print(f"services: {error}", file=sys.stderr)
        return 1
    if urls is None:
        print(f"services: {options.name} does not run; start it with `scripts/services start`", file=sys.stderr)
        return 1
    return _show(urls, prefix="export " if options.command == "env" else "")


def _name_others(name: str) -> None:
    """Say which other pairs of this checkout run: each takes memory, and is easily forgotten."""
    others = [other for other, pair in Pair.all_of(CHECKOUT).items() if other != name and pair.runs]
    if others:
        print(f"services: there run besides: {', '.join(others)} (choose one by --name)", file=sys.stderr)


def _show(urls: Urls, prefix: str = "") -> int:
    for name, url, given in zip(("DATABASE_URL", "AMQP_URL"), (urls.database, urls.amqp), external_urls(), strict=True):
        print(f"{prefix}{name}={shlex.quote(url)}")
        if given is not None:
            print(f"services: {name} comes from the environment; nothing is started for it", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/services",
        description="A private PostgreSQL and a private RabbitMQ on 127.0.0.1, their data below .services/NAME. "
        "DATABASE_URL and AMQP_URL in the environment win: for them nothing is started.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in (
        ("prepare", "install RabbitMQ where that is missing and possible, and start nothing"),
        ("start", "start both servers, unless they run, and print their URLs"),
        ("stop", "stop both servers; their data stays"),
        ("remove", "stop both servers and delete their data"),
        ("status", "print the URLs; exit 1 if a server does not run; name other pairs that run"),
        ("env", "print the URLs as lines for the shell: eval \"$(scripts/services env)\""),
    ):  # fmt: skip
        command = commands.add_parser(name, help=purpose, description=purpose)
        if name != "prepare":
            command.add_argument("--name", default="default", help="which pair of servers (default: default)")
        if name == "start":
            command.add_argument(
                "--postgres",
                metavar="15|18|PATH",
                help="a major version, or a folder with server binaries (default: the newest found)",
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
