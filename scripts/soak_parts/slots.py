"""The fleet's processes under an outside supervisor: whatever ends is started again, and how it ended is remembered.

A slot is a place for one process. Its starts follow one another, each with a log of its own. Each slot reaches database
and broker through relays of its own, so that one process can lose a line that the others keep.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from servers.relay import Relay

CHECKOUT = Path(__file__).resolve().parents[2]
_STOP_S = 30.0
_PAUSE_S = 0.3
_SAMPLE_S = 0.5
_KIB_OF_MIB = 1024


class End(str, Enum):
    """How a process ended."""

    RUNS = "runs"
    KILLED = "killed"  # by the soak, or by SIGTERM before it could listen
    STOPPED = "stopped"  # by SIGTERM
    OVERDUE = "overdue"  # by SIGTERM, and then by SIGKILL
    BY_ITSELF = "by itself"


@dataclass(slots=True, kw_only=True)
class Start:
    """One process, from its start to its end.

    :param code: exit code; minus the signal's number if a signal ended it.
    :param apart: whether its heartbeats may have been kept away: it was frozen, or its line was silent.
    :param peak_mib: the most memory that it was seen to have.
    """

    slot: int
    pid: int
    log: Path
    end: End = End.RUNS
    code: int | None = None
    apart: bool = False
    peak_mib: float = 0.0


@dataclass(slots=True, kw_only=True)
class Slot:
    """One place for a process.

    :param port: of its HTTP door.
    :param turn: held by whoever strikes the process.
    """

    number: int
    command: list[str]
    environment: Mapping[str, str]
    directory: Path
    port: int
    database: Relay
    broker: Relay
    starts: list[Start] = field(default_factory=list)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _process: asyncio.subprocess.Process | None = None
    _closing: bool = False

    @property
    def current(self) -> Start:
        """The last start."""
        return self.starts[-1]

    async def supervise(self) -> None:
        """Keep a process running until `close`."""
        while not self._closing:
            self._process = process = await self._start()
            start = Start(slot=self.number, pid=process.pid, log=self._log())
            self.starts.append(start)
            sampling = asyncio.create_task(_sample(start, Path(f"/proc/{start.pid}/status")))
            try:
                start.code = await process.wait()
            finally:
                sampling.cancel()
            if start.end is End.RUNS:
                start.end = End.BY_ITSELF
            await asyncio.sleep(_PAUSE_S)

    def kill(self) -> None:
        """SIGKILL the process, if one runs."""
        if self._send(signal.SIGKILL):
            self.current.end = End.KILLED

    async def stop(self) -> None:
        """SIGTERM the process, and SIGKILL it if it has not ended in time. Returns when it is gone."""
        process, start = self._process, self.current
        # Before its first line it may not listen to signals yet, and is ended by this one.
        end = End.STOPPED if _has_spoken(start) else End.KILLED
        if process is None or not self._send(signal.SIGTERM):
            return
        start.end = end
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            start.end = End.OVERDUE
            self._send(signal.SIGKILL)
            await process.wait()

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP the process for a while."""
        if self._send(signal.SIGSTOP):
            self.current.apart = True
            try:
                await asyncio.sleep(seconds)
            finally:
                self._send(signal.SIGCONT)

    async def silence(self, relay: Relay, seconds: float) -> None:
        """Let nothing through on a line of the process for a while."""
        self.current.apart = True
        relay.half_open()
        try:
            await asyncio.sleep(seconds)
        finally:
            relay.heal()
            self.current.apart = True  # of the process that was started meanwhile

    async def close(self) -> None:
        """Stop the process and start no other."""
        self._closing = True
        if self.starts:
            await self.stop()

    def end(self) -> None:
        """Kill what runs, at once, and start no other."""
        self._closing = True
        self._send(signal.SIGCONT)
        self._send(signal.SIGKILL)

    async def _start(self) -> asyncio.subprocess.Process:
        with self._log(len(self.starts)).open("ab") as output:
            # A session of its own: Ctrl-C in the terminal is for the soak, which then ends it.
            return await asyncio.create_subprocess_exec(
                *self.command, env=self.environment, cwd=CHECKOUT, start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def _log(self, number: int | None = None) -> Path:
        return self.directory / f"process-{self.number}-{len(self.starts) if number is None else number:03}.log"

    def _send(self, number: signal.Signals) -> bool:
        if self._process is None or self._process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        return True


def _has_spoken(start: Start) -> bool:
    return start.log.stat().st_size > 0


def fleet_environment(directory: Path, *, database_url: str, amqp_url: str) -> dict[str, str]:
    """Return the whole environment of a process: where its handlers are imported from, and its servers."""
    inherited = os.environ.get("PYTHONPATH")
    folders = [str(CHECKOUT), str(CHECKOUT / "scripts"), *([inherited] if inherited else [])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONUNBUFFERED": "1",
        "DATABASE_URL": database_url,
        "AMQP_URL": amqp_url,
        "SOAK_WITNESS_DIRECTORY": str(directory),
    }


def fleet_command(*arguments: str) -> list[str]:
    """Return the command line of `inbox-fleet` with these arguments."""
    return [sys.executable, "-m", "consumers.cli", *arguments]


async def _sample(start: Start, status: Path) -> None:
    while True:
        start.peak_mib = max(start.peak_mib, _peak_mib(status))
        await asyncio.sleep(_SAMPLE_S)


def _peak_mib(status: Path) -> float:
    with suppress(OSError):  # it has just ended
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / _KIB_OF_MIB
    return 0.0
