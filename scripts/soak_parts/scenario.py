"""The course of a soak: the fleet works, an operator replays, all is broken again and again; then it is judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from deadlines import RunFailed, until
from foreign_client import dead_letters
from inbox import message_key
from servers import ServerError
from soak_parts.doors import is_ready, not_given_back
from soak_parts.facts import Facts, LetterFact, Tables
from soak_parts.faults import Breakage, schedule
from soak_parts.ledger import LOST, Standing
from soak_parts.logs import Logs
from soak_parts.mail import CONSUMER, SOURCE
from soak_parts.operator import Operator
from soak_parts.place import PROCESSES, Place
from soak_parts.sender import Sender
from soak_parts.slots import Start
from soak_parts.strikes import Strikes
from soak_parts.witness import Evidence

_START_S = 30.0
_SEND_S = 120.0
_STALL_S = 60.0
_GIVE_BACK_S = 15.0
_LOOK_S = 0.5
_QUIET_END_S = 5.0
_NO_POISON_END_S = 15.0


class Scenario:
    """One run in a place that is prepared. `play` may be called once.

    Attributes:
        strikes: What was broken.
        logs: What the processes logged, once it is over.
        seconds: How long the fleet worked, from the first message to the last end.
    """

    def __init__(self, place: Place, *, seed: int, seconds: float, rate: float, say: Callable[[str], None]) -> None:
        self.strikes = Strikes(place, say)
        self.sender = Sender(place.broker.url(), queue=place.queue, seed=seed, rate=rate)
        self.seconds = 0.0
        self.operator = Operator(place, published=self.sender.published, seed=seed, say=say)
        self.standing = Standing(ended=0, still_open=0, untold=0, owed=0)
        self.logs = Logs([])
        self._place, self._seed, self._length_s, self._say = place, seed, seconds, say
        self._left: dict[str, int] = {}

    async def play(self) -> Facts:
        """Play it to the end and return the facts. Raises RunFailed or ServerError, alone or in a group."""
        slots = self._place.slots
        async with asyncio.TaskGroup() as tasks:
            for slot in slots:
                tasks.create_task(slot.supervise())
            try:
                await self._all_ready()
                began = time.monotonic()
                await self._work()
                problem = await self._come_to_an_end()
                self.seconds = time.monotonic() - began
                held = await self._not_given_back() if problem is None else [problem]
                tables = await self._place.ledger.tables(self.sender.published)
                await asyncio.gather(*(slot.close() for slot in slots))
                left = await asyncio.to_thread(self._queues)
                letters = await asyncio.to_thread(self._letters)
            finally:
                for slot in slots:
                    slot.end()
        return self._facts(tables, held, left, letters)

    async def _work(self) -> None:
        """Publish and break until the time is over; return when all is whole, and confirmed."""
        faults = schedule(self._seed, self._length_s - _QUIET_END_S, slots=PROCESSES)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch())
            operating = tasks.create_task(self.operator.work(self._length_s))
            breaking = tasks.create_task(self.strikes.carry_out(faults))
            sending = tasks.create_task(
                self.sender.send(self._length_s, last_poison_s=self._length_s - _NO_POISON_END_S)
            )
            await breaking
            self._say("all is whole again")
            async with asyncio.timeout(_SEND_S):
                await sending
            await operating
            watching.cancel()

    async def _come_to_an_end(self) -> str | None:
        """Wait until every message has come to its end; return what is wrong if that does not come."""
        everything = len(self.sender.published)

        async def ended() -> bool:
            with suppress(*LOST):
                self.standing = await self._place.ledger.standing()
            with suppress(ServerError):
                self._left = await asyncio.to_thread(self._queues)
            now = self.standing
            unfinished = now.still_open or now.untold or now.owed or any(self._left.values())
            return now.ended == everything and not unfinished

        try:
            await until(
                ended,
                within_s=_STALL_S,
                every_s=_LOOK_S,
                moving=lambda: (self.standing.ended, self.standing.untold, self.standing.owed),
                what=lambda: f"the end of {everything} messages: {self.standing}, queues hold {self._left}",
            )
        except RunFailed as failure:
            return str(failure)
        return None

    async def _not_given_back(self) -> list[str]:
        """Wait until the fleet, which has nothing to do, holds nothing; return what it holds if that does not come."""
        held: list[str] = []

        async def all_given_back() -> bool:
            nonlocal held
            try:
                doors = await asyncio.gather(
                    *(asyncio.to_thread(not_given_back, slot) for slot in self._place.slots)
                )  # fmt: skip
                held = [what for door in doors for what in door] + await self._place.ledger.held()
            except OSError as error:
                held = [f"a process does not answer at its HTTP door: {error}"]
            return not held

        with suppress(RunFailed):
            await until(all_given_back, within_s=_GIVE_BACK_S, every_s=_LOOK_S, what=lambda: "all given back")
        return held

    async def _all_ready(self) -> None:
        async def ready() -> bool:
            doors = [asyncio.to_thread(is_ready, slot) for slot in self._place.slots]
            return all(await asyncio.gather(*doors))

        await until(
            ready, within_s=_START_S, every_s=0.2, what=lambda: f"all processes to be ready: {self._place.directory}"
        )

    async def _watch(self) -> None:
        while True:
            with suppress(*LOST):
                self.standing = await self._place.ledger.standing()
            self._say(
                f"{len(self.sender.published)} messages in {self.sender.confirmed} copies published, "
                f"{self.standing.ended} ended, {self.standing.still_open} on record"
            )
            await asyncio.sleep(10.0)

    def _queues(self) -> dict[str, int]:
        queues = self._place.broker.list_queues()
        return {name: counts.total for name, counts in queues.items() if name != self._place.dead_letters}

    def _letters(self) -> list[LetterFact]:
        ids = {str(message_key(CONSUMER, SOURCE, of)): of for of in self.sender.published}
        found = dead_letters(self._place.broker.url(), self._place.dead_letters)
        return [LetterFact(message_id=ids.get(letter.key), generation=letter.generation) for letter in found]

    def _facts(
        self, tables: Tables, held: Sequence[str], left: dict[str, int], letters: Sequence[LetterFact]
    ) -> Facts:  # fmt: skip
        starts: list[Start] = [start for slot in self._place.slots for start in slot.starts]
        evidence = Evidence.read(self._place.directory)
        self.logs = Logs(starts)
        return Facts(
            published=self.sender.published,
            sent=self.sender.sent,
            tables=tables,
            handled=evidence.starts,
            killers=evidence.killers,
            starts=starts,
            said=self.operator.said,
            letters=letters,
            left=left,
            not_given_back=held,
            alarms=self.logs.alarms,
            limits=self._place.limits,
        )


def faults_done(strikes: Strikes) -> dict[str, int]:
    """Return how often each thing was broken."""
    return {breakage.name.lower(): strikes.done[breakage] for breakage in Breakage}
