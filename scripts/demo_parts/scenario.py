"""The story of one run: the shop opens, the fleet works, three things are broken, a bug is fixed, and all is counted.

The orders that hit the bug end exhausted meanwhile, and are replayed once the fix is out. Each fault waits for a share
of the work to be done, so it strikes while the fleet works, on a fast machine and on a slow one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from deadlines import RunFailed, until
from demo_parts.brokers import DemoBroker, FaultLeftOut
from demo_parts.database import DemoDatabase
from demo_parts.fleet import Exhausted, Fleet, Queues
from demo_parts.fleet_process import FleetProcess
from demo_parts.screen import Screen
from demo_parts.shop_process import Shop
from foreign_client import DeadLetter, dead_letters

_KILL_AT, _TERMINATE_AT = 0.15, 0.80
_FIRST_SHIFT, _SECOND_SHIFT = 0.40, 0.70
_START_S = 30.0
_STALL_S = 30.0
_QUIET_S = 10.0
_STOP_S = 30.0
_ROUNDS = 5
_REASON = "the second release has no bug"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the run ended.

    :param effects: number of effects by order id.
    :param exhausted: what was listed as exhausted before the fix.
    :param letters: what the dead-letter queue holds.
    :param left: messages in each other queue once both processes have stopped.
    :param exit_codes: of each process that was stopped.
    :param problem: why the work was not seen to be done, if so.
    """

    effects: Mapping[str, int]
    exhausted: Sequence[Exhausted]
    letters: Sequence[DeadLetter]
    left: Mapping[str, int]
    exit_codes: Mapping[str, int]
    problem: str | None


class Scenario:
    """One run, on servers, queues and tables that are there. `play` may be called once."""

    def __init__(
        self, *, fleet: Fleet, shop: Shop, database: DemoDatabase, broker: DemoBroker, service: str, queue: str,
        queues: Queues, screen: Screen,
    ) -> None:  # fmt: skip
        self._fleet, self._shop, self._database, self._broker = fleet, shop, database, broker
        self._service, self._queue, self._queues, self._screen = service, queue, queues, screen
        self._orders = len({step.order.id for step in shop.steps})
        self._done = 0
        self._exit_codes: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._letters_before = 0

    async def play(self) -> Ending:
        """Play it to the end. Raises RunFailed, alone or in a group."""
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                for process in self._fleet.processes:
                    self._start(process, tasks)
                await self._both_consume()
                await self._trouble(tasks)
                exhausted, problem = await self._fix_and_replay(tasks)
                ending = await self._end(exhausted, problem, tasks)
                watching.cancel()
                return ending
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
        await self._both_consume()
        while not await process.kill():  # an order has killed it just now
            await self._both_consume()
        self._say(f"SIGKILL to {process.name} (pid {process.pid}), and a new start")
        await self._consumed_by(len(self._fleet.processes) - 1)  # the broker has noticed
        self._start(process, tasks)

    async def _close_connections(self) -> None:
        try:
            closed = await self._struck(
                lambda: asyncio.to_thread(self._broker.close_connections), "connection to the broker"
            )
        except FaultLeftOut as reason:
            self._screen.left_out(f"LEFT OUT: the broker's connections were not closed: {reason}")
            return
        which = f"all {closed} connections" if self._broker.counts_all else f"the {closed} connections that it listed"
        self._say(f"the broker closed {which}")

    async def _terminate_sessions(self) -> None:
        terminated = await self._struck(lambda: self._database.terminate_sessions(self._service), "database session")
        self._say(f"PostgreSQL terminated all {terminated} sessions of the fleet")

    async def _struck(self, strike: Callable[[], Awaitable[int]], what: str) -> int:
        """Strike while both processes run, which an order may just have killed, and return how many were struck."""
        for _ in range(_ROUNDS):
            await self._both_consume()
            if number := await strike():
                return number
        raise RunFailed(f"a fault struck nothing: the fleet had no {what} at that moment")

    async def _fix_and_replay(self, tasks: asyncio.TaskGroup) -> tuple[list[Exhausted], str | None]:
        """See the orders that hit the bug end, deploy the fix, and replay them, with the fleet's own commands.

        Return what was exhausted, and what is wrong if that was not seen.
        """
        problem = await self._work_is_done(self._orders - len(self._shop.hit))
        exhausted = await self._fleet.exhausted()
        if problem is not None:
            return exhausted, problem
        ended = ", ".join(f"{one.order} after {one.attempts} attempts ({one.error})" for one in exhausted)
        self._say(f"{len(exhausted)} orders are exhausted: {ended}")
        self._letters_before = self._left[self._queues.dead_letters]
        self._say("the fix is deployed: SIGTERM to one process after the other, and a start of the next release")
        self._fleet.fix()
        for process in self._fleet.processes:
            await self._stop(process)
            self._start(process, tasks)
            await self._both_consume()
        await self._fleet.replay_exhausted(_REASON)
        self._say("an operator has replayed what is exhausted: inbox-fleet messages replay --state exhausted …")
        return exhausted, None

    async def _work_is_done(self, orders: int) -> str | None:
        """Wait until no message is left to be worked on; return what is wrong if that does not come.

        Args:
            orders: How many of them have an effect then.
        """
        quiet_since, done = time.monotonic(), self._done

        async def settled() -> bool:
            nonlocal quiet_since, done
            await self._count()
            if any(self._at_work().values()) or not await self._hit_are_decided():
                quiet_since = time.monotonic()
                return False
            if self._broker.counts_all or self._done == orders:
                return True
            # Deliveries in hand are not counted, and an order is missing: lost, or still being worked on?
            if self._done != done:
                quiet_since, done = time.monotonic(), self._done
            return time.monotonic() > quiet_since + _QUIET_S

        try:
            await until(
                settled,
                within_s=_STALL_S,
                every_s=0.2,
                moving=lambda: (self._done, self._left),
                what=lambda: (
                    "empty queues, and an end of the orders that hit the bug: the queues hold "
                    f"{_shown(self._left)}{self._last_words()}"
                ),
            )
        except RunFailed as failure:
            return str(failure)
        return None

    async def _hit_are_decided(self) -> bool:
        """Whether each order that hits the bug has its effect, or has ended without one since the last replay."""
        ended = self._left[self._queues.dead_letters] - self._letters_before
        return ended + await self._database.have_effect(self._shop.hit) >= len(self._shop.hit)

    async def _end(self, exhausted: list[Exhausted], problem: str | None, tasks: asyncio.TaskGroup) -> Ending:
        """Wait for the end of the work, stop both processes and count what is left.

        Where deliveries in hand cannot be counted they are ready again after the stop: then the fleet works on.
        """
        processes = self._fleet.processes
        for _ in range(_ROUNDS):
            problem = problem or await self._work_is_done(self._orders)
            await asyncio.gather(*(self._stop(process) for process in processes))
            await self._count()
            if (
                self._broker.counts_all
                or problem is not None
                or any(self._exit_codes.values())
                or not any(self._at_work().values())
            ):
                break
            self._say(f"the stop gave back {_shown(self._at_work())}: the fleet starts again")
            for process in processes:
                self._start(process, tasks)
            await self._both_consume()
        return Ending(
            effects=await self._database.effects(),
            exhausted=exhausted,
            letters=await asyncio.to_thread(dead_letters, self._broker.url, self._queues.dead_letters),
            left=self._at_work(),
            exit_codes=self._exit_codes,
            problem=problem,
        )

    def _start(self, process: FleetProcess, tasks: asyncio.TaskGroup) -> None:
        def killed(pid: int, order: str) -> None:
            self._say(f"{order} has killed {process.name} (pid {pid}), which starts again")

        tasks.create_task(process.run(killed))

    async def _stop(self, process: FleetProcess) -> None:
        self._exit_codes[f"{process.name} (pid {process.pid})"] = await process.stop(deadline_s=_STOP_S)

    async def _count(self) -> None:
        self._left = await asyncio.to_thread(self._broker.messages, self._queues.names)

    def _at_work(self) -> dict[str, int]:
        """How many messages each queue held that is worked on."""
        return {queue: count for queue, count in self._left.items() if queue != self._queues.dead_letters}

    async def _both_consume(self) -> None:
        await self._consumed_by(len(self._fleet.processes))

    async def _consumed_by(self, number: int) -> None:
        seen = 0

        async def consumed() -> bool:
            nonlocal seen
            seen = await asyncio.to_thread(self._broker.consumers, self._queue)
            return seen == number

        await until(
            consumed,
            within_s=_START_S,
            every_s=0.1,
            what=lambda: f"queue {self._queue} to have {number} consumers: it has {seen}{self._last_words()}",
        )

    async def _effects_reach(self, share: float) -> None:
        wanted = round(share * self._orders)
        await until(
            lambda: self._done >= wanted,
            within_s=_STALL_S,
            moving=lambda: self._done,
            what=lambda: (
                f"{wanted} of {self._orders} orders to have their effect: {self._done} have{self._last_words()}"
            ),
        )

    async def _watch(self) -> None:
        while True:
            self._done = await self._database.orders_with_effect()
            self._screen.progress(published=self._shop.published, effects=self._done)
            await asyncio.sleep(0.1)

    def _last_words(self) -> str:
        """What each process has logged last, to begin a search with."""
        return "".join(f"\n{process.name} said last: {process.last_lines(1)}" for process in self._fleet.processes)

    def _say(self, what: str) -> None:
        self._screen.say(f"{what}; {self._done:,} of {self._orders:,} orders are done")


def _shown(left: dict[str, int]) -> str:
    return ", ".join(f"{count} in {queue}" for queue, count in left.items() if count) or "nothing"
