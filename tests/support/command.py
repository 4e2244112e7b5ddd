"""The command `inbox-fleet`, run as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.support.forked import fork
from tests.support.servers import CHECKOUT


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str


class Command:
    """A command that runs, its output in pipes.

    Args:
        process: What runs it.
        stdout: What it writes there.
        stderr: What it writes there.
    """

    def __init__(self, process: ForkServerProcess, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self._process = process
        self.stdout = stdout
        self.stderr = stderr

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.exitcode is None

    def interrupt(self) -> None:
        """Send SIGINT, as ctrl-c does."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        self._process.kill()

    async def ended(self) -> Finished:
        """Wait for its end and return how it ended, and what it wrote that nobody has read."""
        stdout, stderr = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await asyncio.to_thread(self._process.join, 10)
        assert self._process.exitcode is not None, "it has closed its streams and goes on"
        return Finished(self._process.exitcode, stdout.decode(), stderr.decode())


@asynccontextmanager
async def running(
    *arguments: str,
    folder: Path,
    environ: Mapping[str, str],
    module: str = "consumers.cli",
    stdin: int | None = None,
) -> AsyncIterator[Command]:
    """Run `inbox-fleet` in a folder while the context lasts, and kill it at the end if it still runs.

    Args:
        arguments: As on a command line.
        folder: The current folder of the process.
        environ: Variables on top of this process's own, from which the URLs of the servers are taken away.
        module: What it is, as after `python -m`.
        stdin: A descriptor; nothing comes from it unless it is given.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "AMQP_URL")}
    async with contextlib.AsyncExitStack() as stack:
        stdout, into_stdout = await _pipe(stack)
        stderr, into_stderr = await _pipe(stack)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            process = fork(
                module,
                arguments,
                folder=folder,
                environment={**kept, "PYTHONPATH": str(CHECKOUT), **environ},
                stdin=nothing if stdin is None else stdin,
                stdout=into_stdout,
                stderr=into_stderr,
            )
        finally:
            for descriptor in (nothing, into_stdout, into_stderr):
                os.close(descriptor)
        try:
            yield Command(process, stdout, stderr)
        finally:
            process.kill()
            await asyncio.to_thread(process.join, 10)


async def _pipe(stack: contextlib.AsyncExitStack) -> tuple[asyncio.StreamReader, int]:
    """Return what reads a pipe until the stack ends, and where to write into it."""
    out, into = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(out, "rb", buffering=0)
    )
    stack.callback(transport.close)
    return reader, into


async def inbox_fleet(*arguments: str, folder: Path, environ: Mapping[str, str], within_s: float = 30.0) -> Finished:
    """Run `inbox-fleet` in a folder and return what came of it.

    Args:
        arguments: As on a command line.
        folder: The current folder of the process.
        environ: As of `running`.
        within_s: After so long it is killed and the test fails.
    """
    async with running(*arguments, folder=folder, environ=environ) as command:
        try:
            async with asyncio.timeout(within_s):
                return await command.ended()
        except TimeoutError:
            command.kill()
            written = await command.ended()
            raise AssertionError(f"it did not end within {within_s:g} s:\n{written.stderr[-4000:]}") from None


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
        environ: As of `running`.
        meanwhile: What happens between the question and its answer.
        answer: What is typed then.
        within_s: After so long it is killed and the test fails.
    """
    leader, follower = pty.openpty()
    try:
        async with running(*arguments, folder=folder, environ=environ, stdin=follower) as command:
            asked = b""
            async with asyncio.timeout(within_s):
                while b"[y/N]" not in asked:
                    asked += (read := await command.stderr.read(4096))
                    assert read, f"it asked nothing:\n{asked.decode()}"
                await meanwhile()
                os.write(leader, f"{answer}\n".encode())
                ended = await command.ended()
    finally:
        os.close(leader)
        os.close(follower)
    return Finished(ended.code, ended.stdout, asked.decode() + ended.stderr)
