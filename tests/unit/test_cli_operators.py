"""Operators' commands without a server: help, what is wrong use, and what of other people's texts is shown."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from consumers.cli import main
from consumers.cli.choosing import ON_RECORD, Moment, listed
from consumers.cli.exhausted import STATES
from consumers.cli.exits import Exit
from consumers.cli.options import operator_name
from consumers.cli.output import visible, write_line, write_table
from consumers.cli.replaying import Rate
from inbox.exhaustions import ExhaustionState
from inbox.states import State
from tests.support.configs import write_config
from tests.support.operators import CONSUMERS

REASON = ("--reason", "because")
COMMANDS = [
    *(("messages", name) for name in ("list", "show", "replay", "discard")),
    *(("exhausted", name) for name in ("list", "ack", "retry")),
    *(("replays", name) for name in ("list", "show", "cancel", "resume")),
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a configuration whose database nobody can reach."""
    write_config(tmp_path, consumers=CONSUMERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", "postgresql://app:hunter2@127.0.0.1:1/x")
    monkeypatch.delenv("AMQP_URL", raising=False)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_by_examples(command: tuple[str, ...]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == Exit.OK
    assert "--config" in result.stdout and f"inbox-fleet {' '.join(command)}" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--since", "yesterday"),
        ("list", "--state", "processed"),
        ("list", "--limit", "0"),
        ("replay", *REASON),
        ("replay", "--consumer", "billing", *REASON),
        ("replay", "m-1", "--all", *REASON),
        ("replay", "m-1", "--state", "exhausted", *REASON),
        ("replay", "m-1"),
        ("replay", "m-1", "--reason", " "),
        ("replay", "m-1", "--reason", "x", "--by", " "),
        ("replay", "m-1", "--rate", "0/s", *REASON),
        ("replay", "m-1", "--rate", "nan", *REASON),
        ("replay", "m-1", "--stop-on-failure-ratio", "1", *REASON),
        ("replay", "m-1", "--stop-on-failure-ratio", "nan", *REASON),
        ("discard", *REASON),
        ("discard", "--source", "/shop", "--all", *REASON),
    ],
    ids=" ".join,
)
def test_what_means_nothing_is_wrong_use(arguments: tuple[str, ...], desk: None) -> None:
    done = invoke("messages", *arguments)
    assert done.exit_code == Exit.USAGE, done.output
    assert done.stdout == "" and "Error: " in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("messages", "list"),
        ("messages", "show", "m-1"),
        ("messages", "replay", "m-1", *REASON),
        ("messages", "discard", "m-1", *REASON),
        ("exhausted", "list"),
        ("exhausted", "ack", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
        ("replays", "list"),
        ("replays", "resume", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
    ],
    ids=" ".join,
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(
    arguments: tuple[str, ...], desk: None
) -> None:
    done = invoke(*arguments)
    assert done.exit_code == Exit.UNREACHABLE, done.output
    assert "127.0.0.1:1" in done.stderr
    assert "hunter2" not in done.output


def test_no_command_needs_a_broker_or_handlers(desk: None) -> None:
    assert invoke("messages", "list").exit_code == Exit.UNREACHABLE  # and not 2, for want of AMQP_URL or of a module


def test_states_to_choose_from_are_those_that_are_stored() -> None:
    assert set(ON_RECORD) == {state.value for state in State} - {"new", "processed"}
    assert set(STATES) == {state.value for state in ExhaustionState}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2h", timedelta(hours=2)),
        ("1.5m", timedelta(seconds=90)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T12:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01 12:00:00+02:00", datetime(2026, 3, 1, 10, tzinfo=UTC)),
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
    ],
)
def test_a_time_is_a_moment_or_how_long_ago(text: str, meant: datetime | timedelta) -> None:
    assert Moment().convert(text, None, None) == meant


@pytest.mark.parametrize("text", ["", "now", "2 fortnights", "-2h", "2026-13-01", "1" * 400 + "d", "\x1b[2J"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time") as refused:
        Moment().convert(text, None, None)
    assert refused.value.message.isprintable()


@pytest.mark.parametrize(("text", "meant"), [("50", 50), ("50/s", 50), ("30/m", 0.5), ("0.5/s", 0.5), ("36/h", 0.01)])
def test_a_rate_is_a_number_in_a_time(text: str, meant: float) -> None:
    assert Rate().convert(text, None, None) == pytest.approx(meant)


@pytest.mark.parametrize("text", ["", "0", "0/s", "-1", "nan", "inf", "1e999", "9" * 400, "5/d", "5 per second"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no rate"):
        Rate().convert(text, None, None)


def test_what_a_terminal_would_obey_is_escaped_and_what_is_long_is_cut() -> None:
    assert visible("plain text, ü, 🧾, [red]") == "plain text, ü, 🧾, [red]"
    assert visible("\x1b[2J\x07\n\x9b\u202e\ud800\x00\x7f") == r"\x1b[2J\x07\n\x9b\u202e\ud800\x00\x7f"
    assert visible("x" * 100, 10) == "x" * 9 + "…"
    assert listed(["\x1b", *(str(number) for number in range(20))]).endswith("'8', and 11 more")


def test_json_holds_every_text_and_moves_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\x7f\x9b\u2028\u202e\U000e0001 🧾 ü\n"
    write_line({"text": hostile})
    written = capsys.readouterr().out
    assert written.removesuffix("\n").isprintable() and "🧾 ü" in written
    assert json.loads(written)["text"] == hostile


def test_a_table_has_one_row_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("a", "b"), [("one\ntwo", "\x1b[31m"), ("[red]", "x")])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 4 and r"one\ntwo" in lines[2] and r"\x1b[31m" in lines[2] and "[red]" in lines[3]


def test_who_does_it_has_a_name_even_without_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    assert operator_name(" ann ") == "ann"
    monkeypatch.setattr("getpass.getuser", nobody)
    assert operator_name(None).startswith(f"uid {os.getuid()}@")
