"""Carries out the faults: on processes by their supervisor, on lines by their relays, on the servers directly.

Faults overlap. Only what strikes the same process, or the same server, comes one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from servers import ServerError
from soak_parts.faults import Breakage, Fault
from soak_parts.ledger import LOST
from soak_parts.place import Place

_REASON = "the soak closes all connections"


class Strikes:
    """Whoever breaks things.

    Args:
        place: Whose processes, lines and servers are struck.
        say: Called with a line for each fault.
    """

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self.done: Counter[Breakage] = Counter()
        self._slots, self._ledger, self._say = place.slots, place.ledger, say
        self._postgres, self._broker = place.postgres, place.broker
        self._database_turn, self._broker_turn = asyncio.Lock(), asyncio.Lock()

    async def carry_out(self, faults: Sequence[Fault]) -> None:
        """Carry out all of them, each at its time, and return when everything is whole again.

        Raises ServerError if a server does not come back.
        """
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                await asyncio.sleep(max(0.0, began + fault.at_s - time.monotonic()))
                self._say(f"{fault.breakage.value}{_details(fault)}")
                tasks.create_task(self._strike(fault))

    async def _strike(self, fault: Fault) -> None:
        slot = self._slots[fault.slot]
        match fault.breakage:
            case Breakage.KILL:
                async with slot.turn:
                    slot.kill()
            case Breakage.STOP:
                async with slot.turn:
                    await slot.stop()
            case Breakage.FREEZE:
                async with slot.turn:
                    await slot.freeze(fault.lasts_s)
            case Breakage.CUT_DATABASE:
                slot.database.cut()
            case Breakage.CUT_BROKER:
                slot.broker.cut()
            case Breakage.STALL_DATABASE:
                await slot.silence(slot.database, fault.lasts_s)
            case Breakage.STALL_BROKER:
                await slot.silence(slot.broker, fault.lasts_s)
            case Breakage.TERMINATE:
                with suppress(*LOST):  # the database may be down at that moment
                    await self._ledger.terminate_sessions()
            case Breakage.CLOSE:
                with suppress(ServerError):
                    await asyncio.to_thread(self._broker.close_all_connections, _REASON)
            case Breakage.RESTART_DATABASE:
                await self._down(self._database_turn, self._postgres.stop, self._postgres.start, fault.lasts_s)
            case Breakage.CRASH_DATABASE:
                await self._down(self._database_turn, self._postgres.kill, self._postgres.start, fault.lasts_s)
            case Breakage.RESTART_BROKER:
                await self._down(self._broker_turn, self._broker.stop, self._broker.start, fault.lasts_s)
            case Breakage.CRASH_BROKER:
                await self._down(self._broker_turn, self._broker.kill, self._broker.start, fault.lasts_s)
        self.done[fault.breakage] += 1

    async def _down(
        self, turn: asyncio.Lock, stop: Callable[[], None], start: Callable[[], None], seconds: float
    ) -> None:  # fmt: skip
        async with turn:
            await asyncio.to_thread(stop)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(start)


def _details(fault: Fault) -> str:
    match fault.breakage:
        case Breakage.TERMINATE | Breakage.CLOSE:
            return ""
        case Breakage.RESTART_DATABASE | Breakage.CRASH_DATABASE | Breakage.RESTART_BROKER | Breakage.CRASH_BROKER:
            return f" after {fault.lasts_s:.1f} s"
        case Breakage.FREEZE | Breakage.STALL_DATABASE | Breakage.STALL_BROKER:
            return f": process {fault.slot + 1}, {fault.lasts_s:.1f} s"
        case _:
            return f": process {fault.slot + 1}"
