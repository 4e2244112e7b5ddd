"""The story of one run: the shop opens, the fleet works, three things are broken, and all is counted at the end.

Each fault waits for a share of the work to be done, so it strikes while the fleet works, on a fast machine and on a
slow one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from demo_parts.brokers import DemoBroker, FaultLeftOut
from demo_parts.database import DemoDatabase
from demo_parts.deadlines import DemoFailed, until
from demo_parts.fleet import Fleet, FleetProcess
from demo_parts.screen import Screen
from demo_parts.shop_process import Shop

_KILL_AT, _TERMINATE_AT = 0.15, 0.80
_FIRST_SHIFT, _SECOND_SHIFT = 0.40, 0.70
_START_S = 30.0
_WORK_S = 120.0
_EMPTY_S = 30.0
_STOP_S = 30.0
_ROUNDS = 5


@dataclass(slots=True)
class Ending:
    """How the run ended.

    :param effects: number of effects by order id.
    :param left: messages in each queue once both processes have stopped.
    :param exit_codes: by process.
    """

    effects: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)


class Scenario:
    """One run, on servers, queues and tables that are there. `play` may be called once."""

    def __init__(
        self, *, fleet: Fleet, shop: Shop, database: DemoDatabase, broker: DemoBroker, service: str, queues: list[str],
        screen: Screen,
    ) -> None:  # fmt: skip
        self._fleet, self._shop, self._database, self._broker = fleet, shop, database, broker
        self._service, self._queues, self._screen = service, queues, screen
        self._orders = len({step.order.id for step in shop.steps})
        self._done = 0

    async def play(self) -> Ending:
        """Play it to the end. Raises DemoFailed, alone or in a group."""
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                for process in self._fleet.processes:
                    tasks.create_task(process.run())
                await self._both_consume()
                await self._trouble(tasks)
                await self._work_is_done()
                watching.cancel()
                return await self._end(tasks)
        finally:
            for process in self._fleet.processes:
                await process.kill()

    async def _trouble(self, tasks: asyncio.TaskGroup) -> None:
        """Let the shop publish all that it has, and break one thing after the other meanwhile."""
        first_shift = tasks.create_task(self._shop.work_until(_FIRST_SHIFT))
        await self._effects_reach(_KILL_AT)
        await self._kill_and_start(self._fleet.processes[0], tasks)
        await first_shift
        await self._both_consume()
        await self._shop.work_until(_SECOND_SHIFT)
        await self._close_connections()
        last_shift = tasks.create_task(self._shop.work_until(1.0))
        await self._effects_reach(_TERMINATE_AT)
        await self._terminate_sessions()
        await last_shift

    async def _kill_and_start(self, process: FleetProcess, tasks: asyncio.TaskGroup) -> None:
        self._say(f"SIGKILL to {process.name} (pid {process.pid}), and a new start")
        await process.kill()
        tasks.create_task(process.run())

    async def _close_connections(self) -> None:
        try:
            closed = await asyncio.to_thread(self._broker.close_connections)
        except FaultLeftOut as reason:
            self._screen.left_out(f"LEFT OUT: the broker's connections were not closed: {reason}")
            return
        self._must_have_struck(closed, "connection to the broker")
        self._say(f"the broker closed all {closed} connections")

    async def _terminate_sessions(self) -> None:
        terminated = await self._database.terminate_sessions(self._service)
        self._must_have_struck(terminated, "database session")
        self._say(f"PostgreSQL terminated all {terminated} sessions of the fleet")

    def _must_have_struck(self, number: int, what: str) -> None:
        if not number:
            raise DemoFailed(f"a fault struck nothing: the fleet had no {what} at that moment")

    async def _work_is_done(self) -> None:
        await self._effects_reach(1.0)
        left: dict[str, int] = {}

        async def empty() -> bool:
            nonlocal left
            left = await asyncio.to_thread(self._broker.messages, self._queues)
            return not any(left.values())

        await until(
            empty, within_s=_EMPTY_S, every_s=0.2, what=lambda: f"the queues to be empty; they hold {_shown(left)}"
        )

    async def _end(self, tasks: asyncio.TaskGroup) -> Ending:
        """Stop both processes and count what is left.

        Where deliveries in hand cannot be seen they are ready again after the stop: then the fleet works on.
        """
        ending = Ending()
        for _ in range(1 if self._broker.counts_all else _ROUNDS):
            processes = self._fleet.processes
            codes = await asyncio.gather(*(process.stop(deadline_s=_STOP_S) for process in processes))
            ending.exit_codes = {process.name: code for process, code in zip(processes, codes, strict=True)}
            ending.left = await asyncio.to_thread(self._broker.messages, self._queues)
            if self._broker.counts_all or not any(ending.left.values()) or any(codes):
                break
            self._say(f"the stop gave back {_shown(ending.left)}: the fleet starts again")
            for process in processes:
                tasks.create_task(process.run())
            await self._both_consume()
            await self._work_is_done()
        ending.effects = dict(await self._database.effects())
        return ending

    async def _both_consume(self) -> None:
        seen = 0

        async def consuming() -> bool:
            nonlocal seen
            seen = await asyncio.to_thread(self._broker.consumers, self._queues[0])
            return seen == len(self._fleet.processes)

        await until(
            consuming,
            within_s=_START_S,
            every_s=0.2,
            what=lambda: f"both processes to consume {self._queues[0]}; it has {seen} consumers",
        )

    async def _effects_reach(self, share: float) -> None:
        wanted = round(share * self._orders)
        await until(
            lambda: self._done >= wanted,
            within_s=_WORK_S,
            what=lambda: f"{wanted} of {self._orders} orders to have their effect; {self._done} have",
        )

    async def _watch(self) -> None:
        while True:
            self._done = await self._database.orders_with_effect()
            self._screen.progress(published=self._shop.published, effects=self._done)
            await asyncio.sleep(0.1)

    def _say(self, what: str) -> None:
        self._screen.say(f"{what}; {self._done:,} of {self._orders:,} orders are done")


def _shown(left: dict[str, int]) -> str:
    return ", ".join(f"{count} in {queue}" for queue, count in left.items() if count) or "nothing"
