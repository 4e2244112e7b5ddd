"""A consumer's table of faults: what it may speak of, and what is refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import asyncpg
import pytest

from consumers.config import parse
from consumers.config.settings import FaultAction
from consumers.errors import ConfigError
from consumers.plan import plan
from inbox import Overrides
from inbox.faults import ACTIONS, NO_OVERRIDES, TABLE, Fault

MODULE = """
from consumers import Consumer, Reject

invoices = Consumer("invoices")

@invoices.on("*")
async def invoice(envelope, tx): ...

@invoices.on("own", max_attempts=2)
async def own(envelope, tx): ...

class Outage(Exception):
    class Brief(Exception): ...

class Never(Reject): ...

Alias = Outage
limit = 3
"""
Planned = Callable[[str], Overrides]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planned]:
    """Plan a consumer with these lines in its table of faults, and return what came of them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "fault_handlers.py").write_text(MODULE)
    (tmp_path / "fails_to_import.py").write_text("raise RuntimeError('no licence')")

    def make(faults: str) -> Overrides:
        text = f"""
            [service]
            name = "billing"
            [pools.invoices]
            [consumers.invoices]
            queue = "billing.invoices"
            handler = "fault_handlers:invoices"
            [consumers.invoices.faults]
            {faults}
            """
        policies = plan(parse(text, file="fleet.toml")).consumers["invoices"].policies
        (chosen,) = {id(policy.faults): policy.faults for policy in policies.values()}.values()
        return chosen

    yield make
    for name in ("fault_handlers", "fails_to_import"):
        sys.modules.pop(name, None)


def refusal(planned: Planned, line: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        planned(line)
    assert str(caught.value).startswith("fleet.toml: consumers.invoices.faults")
    assert caught.value.allowed
    return caught.value


def test_the_words_of_the_file_are_those_of_the_inbox() -> None:
    assert get_args(FaultAction) == tuple(ACTIONS)


def test_nothing_is_chosen_by_default(planned: Planned) -> None:
    assert planned("") == NO_OVERRIDES


def test_sqlstates_classes_and_types_may_be_chosen_for_all_types_of_a_consumer(planned: Planned) -> None:
    chosen = planned(
        """
        P0001 = "abort"
        23 = "rerun"
        "40P01" = "charge"
        "fault_handlers.Outage" = "pause"
        "fault_handlers.Outage.Brief" = "rerun"
        "asyncpg.PostgresError" = "abort"
        TimeoutError = "pause"
        """
    )
    handlers = sys.modules["fault_handlers"]
    assert chosen.by_sqlstate == {"P0001": Fault.ABORT, "23": Fault.RERUN, "40P01": Fault.CHARGE}
    assert chosen.by_type == {
        handlers.Outage: Fault.PAUSE,
        handlers.Outage.Brief: Fault.RERUN,
        asyncpg.PostgresError: Fault.ABORT,
        TimeoutError: Fault.PAUSE,
    }


@pytest.mark.parametrize("key", ["4001", "2", "httpx-errors", "a b", "", "httpx.", ".Error", "1.Error", "40.P01"])
def test_a_key_that_names_no_error_is_refused_as_the_file_is_read(planned: Planned, key: str) -> None:
    error = refusal(planned, f'"{key}" = "abort"')
    assert (error.key, error.value) == (f'consumers.invoices.faults."{key}"', '"abort"')
    assert "it names no error" in str(error)
    assert "httpx.ConnectError" in error.allowed


@pytest.mark.parametrize("value", ['"ignore"', '"Pause"', "1", "true", "[]", '["pause"]'])
def test_a_choice_that_there_is_not_is_refused(planned: Planned, value: str) -> None:
    error = refusal(planned, f"P0001 = {value}")
    assert error.key == "consumers.invoices.faults.P0001"
    assert error.allowed == '"charge" or "rerun" or "abort" or "pause"'


def test_a_name_with_dots_that_stands_without_quotes_is_told_apart(planned: Planned) -> None:
    error = refusal(planned, 'httpx.ConnectError = "pause"')
    assert error.key == "consumers.invoices.faults.httpx"
    assert "between quotes" in error.problem


@pytest.mark.parametrize(
    "key", [*(row.key for row in TABLE if row.handler is Fault.SESSION_LOST), "asyncpg.exceptions.ProtocolError"]
)
def test_nobody_chooses_about_a_session_that_is_lost(planned: Planned, key: str) -> None:
    error = refusal(planned, f'"{key}" = "charge"')
    assert (error.key, error.value) == (f'consumers.invoices.faults."{key}"', '"charge"')
    assert "it cannot be overridden: whoever meets it has lost its session" in error.problem


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("p0001", "has no attribute 'p0001'"),
        ("httpxx.ConnectError", "No module named 'httpxx'"),
        ("fault_handlers.Outrage", "has no attribute 'Outrage'"),
        ("Timeout", "has no attribute 'Timeout'"),
        ("fault_handlers.limit", "it is not an exception type"),
        ("fault_handlers", "no exception type is found"),
        ("dict", "it is not an exception type"),
        ("fails_to_import.Error", "importing it failed: RuntimeError: no licence"),
        ("inbox.Reject", "it is an answer"),
        ("consumers.Retry", "it is an answer"),
        ("fault_handlers.Never", "it is an answer"),
    ],
)
def test_a_name_that_is_no_exception_type_is_refused_when_the_handlers_are_known(
    planned: Planned, name: str, problem: str
) -> None:
    error = refusal(planned, f'"{name}" = "pause"')
    assert (error.key, error.value) == (f'consumers.invoices.faults."{name}"', '"pause"')
    assert problem in error.problem


def test_two_names_of_one_type_are_refused(planned: Planned) -> None:
    error = refusal(planned, '"fault_handlers.Outage" = "pause"\n"fault_handlers.Alias" = "abort"')
    assert 'the same type as "fault_handlers.Outage"' in error.problem
