"""A supervisor outside the fleet: it starts a process anew as soon as the one before has ended, as a platform does.

It may bound the memory of a process: one that has more resident than that gets SIGKILL. That is as near as a test comes
to the kernel's OOM killer, whose signal it is: sent from outside, at any moment, and never caught. It is not the
killer itself: that one chooses its victim by itself, and needs a memory cgroup or an exhausted machine. A limit of the
address space (RLIMIT_AS) would be something else again: the handler gets a MemoryError, which is an ordinary failure.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.process import FleetProcess
from tests.support.service import Service

_FOREVER_S = 3600.0


class Supervisor:
    """Keeps one process of a service running. Use `supervised`.

    Args:
        most_resident: Bytes of memory above which a process is killed.
    """

    def __init__(self, service: Service, *, most_resident: int | None = None) -> None:
        self._service = service
        self._most_resident = most_resident
        self.processes: list[FleetProcess] = []

    @property
    def running(self) -> FleetProcess:
        """The process that runs now, or was started last."""
        return self.processes[-1]

    @property
    def deaths(self) -> list[int]:
        """The exit codes of those that have ended, in their order."""
        return [code for process in self.processes if (code := process.exit_code) is not None]

    async def run(self) -> None:
        """Start process after process, until cancelled."""
        while True:
            self.processes.append(self._service.spawn())
            await eventually(self._ended, _FOREVER_S, what="the end of a process")

    def _ended(self) -> bool:
        process = self.running
        if process.exit_code is not None:
            return True
        if self._most_resident is not None and _resident(process.pid) > self._most_resident:
            process.kill()
        return False


@asynccontextmanager
async def supervised(service: Service, *, most_resident: int | None = None) -> AsyncIterator[Supervisor]:
    """Keep a process of a service running during a test; the last one runs on afterwards."""
    supervisor = Supervisor(service, most_resident=most_resident)
    task = asyncio.get_running_loop().create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(end, Exception):
            raise end


def _resident(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages[1]) * resource.getpagesize() if len(pages) > 1 else 0
