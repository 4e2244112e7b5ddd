"""Processes that are forked after the imports behave as those that begin with them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Finished, inbox_fleet, running
from tests.support.eventually import eventually
from tests.support.servers import CHECKOUT

DRAWS = """
import random, sys
from uuid_utils import uuid4, uuid7
assert "consumers.fleet" in sys.modules, "nothing was imported before"
numbers = random.Random()
print(uuid4(), uuid7(), random.random(), numbers.random())
"""
TELLS = """
import os, signal, sys
print(sys.argv[1:], os.getcwd(), sorted(os.environ), sys.path[:2], __name__)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, sys.stdin.read())
sys.exit("it ended so")
"""
WAITS = """
import signal
print("waits", flush=True)
signal.pause()
"""


async def forked(program: str, folder: Path, *arguments: str) -> Finished:
    (folder / "program.py").write_text(program, encoding="utf-8")
    async with asyncio.timeout(30), running(*arguments, folder=folder, environ={}, module="program") as process:
        return await process.ended()


@pytest.mark.parametrize("arguments", [("--help",), ("migrate", "--nonsense"), ("check", "--config", "none.toml")])
async def test_a_command_says_what_it_says_when_it_is_started(arguments: tuple[str, ...], tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "AMQP_URL")}
    fresh = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "consumers.cli", *arguments],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert fresh.stdout or fresh.stderr
    assert await inbox_fleet(*arguments, folder=tmp_path, environ={}) == Finished(
        fresh.returncode, fresh.stdout, fresh.stderr
    )


async def test_no_two_draw_the_same_ids(tmp_path: Path) -> None:
    drawn = [(await forked(DRAWS, tmp_path)) for _ in range(3)]
    assert [each.code for each in drawn] == [0, 0, 0], drawn
    values = [value for each in drawn for value in each.stdout.split()]
    assert len(values) == 12 == len(set(values))


async def test_arguments_folder_variables_streams_and_signals_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "1")
    told = await forked(TELLS, tmp_path, "--one", "two words")
    first, second = told.stdout.splitlines()
    assert first.startswith(f"['--one', 'two words'] {tmp_path} ") and first.endswith(" __main__")
    assert "'OF_THE_CALLER'" in first and f"['{tmp_path}', '{CHECKOUT}']" in first
    monkeypatch.delenv("OF_THE_CALLER")
    assert "OF_THE_CALLER" not in (await forked(TELLS, tmp_path)).stdout
    assert second == "True "
    assert (told.code, told.stderr) == (1, "it ended so\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_its_end_by_a_signal_is_known(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAITS, encoding="utf-8")
    async with asyncio.timeout(30), running(folder=tmp_path, environ={}, module="program") as process:
        assert await process.stdout.readline() == b"waits\n"
        assert process.runs
        os.kill(process.pid, number)
        ended = await process.ended()
    assert ended.code == -number


async def test_what_still_runs_is_ended_with_its_context(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAITS, encoding="utf-8")
    async with running(folder=tmp_path, environ={}, module="program") as process:
        assert await process.stdout.readline() == b"waits\n"
    await eventually(lambda: not Path(f"/proc/{process.pid}").exists(), what="its end")
