"""The front door: what services import, loaded only when it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import consumers
import inbox
from consumers.registry import Consumer
from consumers.threads import BlockingTx

HEAVY = ("asyncpg", "aio_pika", "aiormq", "opentelemetry", "rich", "starlette", "uvicorn", "structlog", "msgspec")


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_names_are_those_of_their_homes() -> None:
    assert consumers.Consumer is Consumer
    assert (consumers.Envelope, consumers.Tx, consumers.Attempt) == (inbox.Envelope, inbox.Tx, inbox.Attempt)
    assert (consumers.Reject, consumers.Retry) == (inbox.Reject, inbox.Retry)
    assert set(consumers.__all__) <= set(dir(consumers))


def test_other_names_are_missing_as_usual() -> None:
    with pytest.raises(AttributeError, match="'consumers' has no attribute 'Consumers'"):
        consumers.Consumers  # noqa: B018
    with pytest.raises(ImportError):
        exec("from consumers import Consumers")


@pytest.mark.parametrize("module", ["consumers", "consumers.cli"])
def test_importing_the_package_or_the_command_loads_no_driver(module: str) -> None:
    assert modules_after(f"import {module}").isdisjoint(HEAVY)


@pytest.mark.parametrize("tx", [inbox.Tx, BlockingTx])
def test_a_handler_is_offered_by_its_tx_what_the_readme_lists_and_nothing_of_the_machine(tx: type) -> None:
    readme = Path(consumers.__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    listed = re.search(r"the transaction\s\(([^)]*\(\)[^)]*)\)", readme)
    assert listed is not None
    assert {name for name in dir(tx) if not name.startswith("_")} == set(re.findall(r"`(\w+)", listed[1]))
