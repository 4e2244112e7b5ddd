"""One process of the fleet as the demo sees it: started, watched, killed, stopped.

One that an order kills is started again. One that ends otherwise without being asked to ends the demo, with the end of
its log.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from deadlines import RunFailed
from demo_parts.witness import killer

CHECKOUT = Path(__file__).resolve().parents[2]


class FleetProcess:
    """One process of the fleet. It may be started again after it has ended; its log goes on.

    Args:
        name: How the demo calls it.
        command: What is run.
        environment: Its whole environment.
        directory: Where its log is, and what its handler wrote.
    """

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name.replace(' ', '-')}.log"
        self._command, self._environment, self._directory = command, environment, directory
        self._process: asyncio.subprocess.Process | None = None
        self._told_to_end = asyncio.Event()

    async def run(self, killed: Callable[[int, str], None]) -> None:
        """Keep it running until it is told to end. What an order has killed is started again, as by a platform.

        Args:
            killed: Called with the process id and the order's id.

        Raises RunFailed if it ends by itself otherwise.
        """
        told_to_end = self._told_to_end = asyncio.Event()
        while True:
            process = await self._start()
            code = await process.wait()
            if told_to_end.is_set():
                return
            order = killer(self._directory, process.pid)
            if order is None or code != -signal.SIGKILL:
                raise RunFailed(
                    f"{self.name} ended by itself with exit code {code}; its log ends with:\n{self.last_lines()}"
                )
            killed(process.pid, order)

    async def _start(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal is for the demo, which then stops it in order.
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                cwd=CHECKOUT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._process

    @property
    def pid(self) -> int | None:
        """Its process id, or None before the first start."""
        return None if self._process is None else self._process.pid

    def last_lines(self, number: int = 25) -> str:
        """Return the end of its log."""
        if not self.log.exists():
            return "(nothing)"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-number:])

    async def kill(self) -> bool:
        """SIGKILL it and return, when it is gone, whether there was one to kill."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._told_to_end.set()
        self._process.kill()
        await self._process.wait()
        return True

    async def stop(self, *, deadline_s: float) -> int:
        """SIGTERM it and return its exit code. Raises RunFailed if it takes longer than `deadline_s` seconds."""
        assert self._process is not None, "it was started"
        self._told_to_end.set()
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(deadline_s):
                return await self._process.wait()
        except TimeoutError:
            raise RunFailed(
                f"waited {deadline_s:g} s in vain for {self.name} to stop after SIGTERM; its log ends with:\n"
                f"{self.last_lines()}"
            ) from None
