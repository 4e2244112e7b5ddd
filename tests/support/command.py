"""The command `inbox-fleet`, run as a process of its own."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import CHECKOUT


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str


async def inbox_fleet(*arguments: str, folder: Path, environ: Mapping[str, str], within_s: float = 30.0) -> Finished:
    """Run `inbox-fleet` in a folder and return what came of it.

    Args:
        arguments: As on a command line.
        folder: The current folder of the process.
        environ: Variables on top of this process's own, from which the URLs of the servers are taken away.
        within_s: After so long it is killed and the test fails.
    """
    child = await _started(arguments, folder, environ, stdin=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(within_s):
            stdout, stderr = await child.communicate()
    except TimeoutError:
        child.kill()
        stdout, stderr = await child.communicate()
        raise AssertionError(f"it did not end within {within_s:g} s:\n{stderr.decode()[-4000:]}") from None
    assert child.returncode is not None
    return Finished(child.returncode, stdout.decode(), stderr.decode())


async def inbox_fleet_asking(
    *arguments: str,
    folder: Path,
    environ: Mapping[str, str],
    meanwhile: Callable[[], Awaitable[object]],
    answer: str = "y",
    within_s: float = 60.0,
) -> Finished:
    """Run `inbox-fleet` with its stdin on a terminal, and let something happen while its question is open.

    Args:
        arguments: As on a command line.
        folder: The current folder of the process.
        environ: As of `inbox_fleet`.
        meanwhile: What happens between the question and its answer.
        answer: What is typed then.
        within_s: After so long it is killed and the test fails.
    """
    leader, follower = pty.openpty()
    try:
        try:
            child = await _started(arguments, folder, environ, stdin=follower)
        finally:
            os.close(follower)
        assert child.stderr is not None
        asked = b""
        try:
            async with asyncio.timeout(within_s):
                while b"[y/N]" not in asked:
                    asked += (read := await child.stderr.read(4096))
                    assert read, f"it asked nothing:\n{asked.decode()}"
                await meanwhile()
                os.write(leader, f"{answer}\n".encode())
                stdout, stderr = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    finally:
        os.close(leader)
    assert child.returncode is not None
    return Finished(child.returncode, stdout.decode(), (asked + stderr).decode())


async def _started(
    arguments: tuple[str, ...], folder: Path, environ: Mapping[str, str], *, stdin: int
) -> asyncio.subprocess.Process:
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "AMQP_URL")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "consumers.cli", *arguments),
        cwd=folder,
        env={**kept, "PYTHONPATH": str(CHECKOUT), **environ},
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
