"""Runs the shop's process, one shift after another, and follows how far it came."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from deadlines import RunFailed
from demo_parts.order_book import order_book, publishes

_SCRIPTS = Path(__file__).resolve().parents[1]
_SILENCE_S = 30.0


class Shop:
    """The foreign publisher. Between two shifts it has no connection and nothing in flight.

    Args:
        url: The broker.
        queue: Where it publishes to.
        name: What its connections' names begin with.
        orders: How many orders its book has.
    """

    def __init__(self, url: str, *, queue: str, name: str, orders: int) -> None:
        self.steps = publishes(order_book(orders))
        self._done = 0
        self._environment = {**os.environ, "AMQP_URL": url}
        self._arguments = ["--queue", queue, "--name", name, "--orders", str(orders)]

    @property
    def published(self) -> int:
        """How many copies the broker has confirmed."""
        return sum(step.at_once for step in self.steps[: self._done])

    @property
    def orders(self) -> set[str]:
        """The ids of all orders of which a copy was confirmed."""
        return {step.order.id for step in self.steps[: self._done]}

    @property
    def hit(self) -> set[str]:
        """The ids of the orders in the book that the bug in the handler's first release is met with."""
        return {step.order.id for step in self.steps if step.order.bug is not None}

    async def work_until(self, share: float) -> None:
        """Publish on until this share of the book is published. Raises RunFailed."""
        last = round(share * len(self.steps))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "demo_parts.shop", *self._arguments, "--first", str(self._done), "--last", str(last),
            env=self._environment, cwd=_SCRIPTS, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None, "both are pipes"
        try:
            async with asyncio.timeout(None) as silence:
                loop = asyncio.get_running_loop()
                silence.reschedule(loop.time() + _SILENCE_S)
                async for line in process.stdout:
                    self._done = int(line)
                    silence.reschedule(loop.time() + _SILENCE_S)
                errors = (await process.stderr.read()).decode(errors="replace").strip()
                code = await process.wait()
        except TimeoutError:
            raise RunFailed(
                f"waited {_SILENCE_S:g} s in vain for the shop to publish: {self._done} of {last} steps are done"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            raise RunFailed(f"the shop gave up after {self._done} of {last} steps: {errors}")
