"""The command `inbox-fleet`, run as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
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
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "AMQP_URL")}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "consumers.cli", *arguments),
        cwd=folder,
        env={**kept, "PYTHONPATH": str(CHECKOUT), **environ},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within_s):
            stdout, stderr = await child.communicate()
    except TimeoutError:
        child.kill()
        stdout, stderr = await child.communicate()
        raise AssertionError(f"it did not end within {within_s:g} s:\n{stderr.decode()[-4000:]}") from None
    assert child.returncode is not None
    return Finished(child.returncode, stdout.decode(), stderr.decode())
