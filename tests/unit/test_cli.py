"""The command line without servers: help, exit codes, and errors as one block on stderr."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from consumers.cli import main
from consumers.cli.exits import Exit, explain
from consumers.errors import BrokerUnavailable, ConfigError, DatabaseUnavailable, RegistrationError, TopologyMismatch
from inbox import SchemaMissing, UnsafeServer

FLEET = """
[service]
name = "billing"
[pools.invoices]
[consumers.invoices]
queue = "billing.invoices"
handler = "cli_handlers:invoices"
"""
HANDLERS = """
from consumers import Consumer
invoices = Consumer("invoices")
@invoices.on("order.placed")
async def invoice(envelope, tx): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "cli_handlers.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("DATABASE_URL", "AMQP_URL", "INBOX_FLEET_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    sys.modules.pop("cli_handlers", None)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("run",),
        ("migrate",),
        ("check",),
        ("topology",),
        ("topology", "show"),
        ("topology", "apply"),
        ("topology", "verify"),
    ],
)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == Exit.OK
    assert result.stdout.startswith("Usage: ")
    if command not in ((), ("topology",)):
        assert "--config" in result.stdout
        assert "Example" in result.stdout


def test_the_help_lists_every_exit_code() -> None:
    listed = invoke("--help").stdout
    for code in Exit:
        assert f"  {code.value:<3}  {code.meaning}\n" in listed


@pytest.mark.parametrize("arguments", [("rum",), ("run", "--confg", "x"), ("check", "--output", "xml")])
def test_wrong_use_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == Exit.USAGE
    assert result.stdout == ""
    assert "Error" in result.stderr


@pytest.mark.parametrize("command", [("run",), ("migrate",), ("check",), ("topology", "show")])
def test_a_missing_configuration_exits_with_2_and_names_the_file(folder: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, "--config", "nowhere.toml")
    assert result.exit_code == Exit.USAGE
    assert result.stdout == ""
    assert "nowhere.toml" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_refused_value_is_said_with_file_key_value_and_what_is_allowed(folder: Path) -> None:
    (folder / "fleet.toml").write_text(FLEET + "lanes = 0\n")
    result = invoke("run")
    assert result.exit_code == Exit.USAGE
    assert result.stderr == (
        "Error: the configuration is refused: this number cannot stand here\n"
        "  file     fleet.toml\n"
        "  key      consumers.invoices.lanes\n"
        "  value    0\n"
        "  allowed  a whole number from 1 to 1000\n"
    )


def test_a_missing_url_is_said_before_anything_starts(folder: Path) -> None:
    result = invoke("run")
    assert result.exit_code == Exit.USAGE
    assert "DATABASE_URL" in result.stderr


def test_migrate_needs_no_broker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://app:hunter2@127.0.0.1:1/billing")
    result = invoke("migrate")
    assert result.exit_code == Exit.UNREACHABLE
    assert "127.0.0.1:1" in result.stderr
    assert "hunter2" not in result.output


def test_the_configuration_can_be_named_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INBOX_FLEET_CONFIG", "other.toml")
    assert "other.toml" in invoke("migrate").stderr


def test_a_mistake_in_a_handler_is_said_with_its_place(folder: Path) -> None:
    (folder / "cli_handlers.py").write_text(HANDLERS.replace("(envelope, tx)", "(envelope)"))
    result = invoke("topology", "show")
    assert result.exit_code == Exit.USAGE
    assert "cli_handlers.py:4" in result.stderr
    assert "Traceback" not in result.stderr


def test_handlers_are_found_in_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "app").mkdir()
    (folder / "cli_handlers.py").rename(folder / "app" / "cli_handlers.py")
    assert "no module cli_handlers" in invoke("topology", "show").stderr
    assert invoke("topology", "show", "--app-dir", "app").exit_code == Exit.OK


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(file="f", key="k", value=None, problem="p", allowed="a"), Exit.USAGE),
        (RegistrationError(consumer="c", subject="s", where="w", problem="p", allowed="a"), Exit.USAGE),
        (SchemaMissing(needed=1), Exit.PRECONDITION),
        (UnsafeServer(setting="fsync", value="off", allowed="on", why="w"), Exit.PRECONDITION),
        (TopologyMismatch(differences=["queue q is missing"]), Exit.PRECONDITION),
        (BrokerUnavailable(broker="b:1", action="connect", problem="refused", hint="look"), Exit.UNREACHABLE),
        (DatabaseUnavailable(database="d:1", problem="refused", hint="look"), Exit.UNREACHABLE),
        (ConnectionRefusedError(111, "Connection refused"), Exit.UNREACHABLE),
        (OSError(98, "Address already in use"), Exit.FAILED),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: Exception, code: Exit) -> None:
    explained = explain(error)
    assert explained is not None
    assert explained[0] is code
    assert explained[1].startswith("Error: ")


def test_a_bug_keeps_its_traceback() -> None:
    assert explain(ZeroDivisionError()) is None
    assert explain(ExceptionGroup("", [SchemaMissing(needed=1), ZeroDivisionError()])) is None


def test_of_a_group_each_error_is_said_once_and_the_gravest_decides() -> None:
    missing = SchemaMissing(needed=1)
    gone = BrokerUnavailable(broker="b:1", action="connect", problem="refused", hint="look")
    explained = explain(ExceptionGroup("", [missing, ExceptionGroup("", [gone, missing])]))
    assert explained is not None
    assert explained[0] is Exit.UNREACHABLE
    assert explained[1].count("Error: ") == 2


def test_ctrl_c_has_its_own_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("consumers.config.load", interrupted)
    assert invoke("topology", "show").exit_code == Exit.INTERRUPTED


@pytest.mark.parametrize("command", [(), ("messages", "replay")], ids=["the program's", "a command's"])
def test_the_help_is_there_at_once(command: tuple[str, ...]) -> None:
    asking = [sys.executable, "-m", "consumers.cli", *command, "--help"]

    def taken_s() -> tuple[float, float]:
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(asking, capture_output=True, check=True)
        assert b"Usage: inbox-fleet" in done.stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.perf_counter() - began, cpu_s

    # Neighbours on the machine only ever lengthen both, and the processor's own time the least.
    on_the_wall, of_the_processor = zip(*(taken_s() for _ in range(5)), strict=True)
    assert min(on_the_wall) < 0.6
    assert min(of_the_processor) < 0.2
