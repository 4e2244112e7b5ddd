"""The republisher: publishes what rows owe to the broker, and clears that once the broker has confirmed it.

It reads obligations in pages, oldest first, and serves some of a page at a time. One that cannot be served pauses by
itself, for longer each time, and holds up no other; none is given up. What is owed stands in the row, so a process that
dies at any point leaves the obligation, and at worst a needless copy, which the inbox absorbs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias
from uuid import UUID

import structlog

from consumers.errors import HeadersTooLarge, MalformedProperties, PublishError
from consumers.owed_copies import copy_of, dead_letter_of
from consumers.publisher import Publisher
from inbox import Backoff
from inbox.claiming import DRIVER_ERRORS
from inbox.obligations import Obligation, Owed, Owing, clear, find, read
from inbox.points import reach
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_PAGE = 200
_AT_A_TIME = 16
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0

_Key: TypeAlias = tuple[Owed, UUID]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a consumer's copies go.

    :param name: the consumer's, for people.
    :param queue: its work queue.
    :param dead_letters: the queue for its dead letters; None: it wants none, and what is owed is cleared.
    """

    name: str
    queue: str
    dead_letters: str | None


@dataclass(slots=True)
class _Pause:
    place: tuple[str, Owed]
    backoff: Backoff
    until: float = 0.0


class Republisher:
    """Serves the obligations of one service.

    :param pool: not a consumer's.
    :param destinations: by the consumer's key name.
    :param timeout_s: of one confirmed publish.
    :param republished: told the consumer's name, what was owed, and how it went: "confirmed", "failed", or "unfit",
        when nothing that may be sent can be made of it.
    """

    def __init__(
        self,
        pool: Pool,
        publisher: Publisher,
        destinations: Mapping[str, Destination],
        *,
        timeout_s: float,
        republished: Callable[[str, Owed, str], None] = lambda consumer, what, outcome: None,
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._destinations = dict(destinations)
        self._timeout_s = timeout_s
        self._republished = republished
        self._last: dict[tuple[str, Owed], Obligation] = {}
        self._pauses: dict[_Key, _Pause] = {}
        self._seen: dict[tuple[str, Owed], set[_Key]] = {}

    async def round(self) -> bool:
        """Serve a page of what each consumer's messages owe. Safe beside any other round, also of another process.

        :return: whether there is more to look at, now.
        :raises PoolError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the database does not serve it.
        """
        more = False
        for key_name in self._destinations:
            for what in Owed:
                if not self._publisher.connected:
                    return False
                more |= await self._page(key_name, what)
        return more

    async def _page(self, key_name: str, what: Owed) -> bool:
        place = key_name, what
        async with self._pool.acquire() as connection:
            page = await find(connection, what, key_name, after=self._last.pop(place, None), limit=_PAGE)
        self._seen.setdefault(place, set()).update((what, owed.key) for owed in page)
        await self._serve_all(key_name, [owed for owed in page if not self._pausing(owed)])
        if len(page) == _PAGE:
            self._last[place] = page[-1]
            return True
        # A pass is over: who was not met owes nothing any more.
        seen = self._seen.pop(place)
        for key in [key for key, pause in self._pauses.items() if pause.place == place and key not in seen]:
            del self._pauses[key]
        return False

    async def _serve_all(self, key_name: str, page: list[Obligation]) -> None:
        waiting, trouble = iter(page), list[BaseException]()

        async def serve_some() -> None:
            for owed in waiting:
                try:
                    await self._serve(key_name, owed)
                except (*DRIVER_ERRORS, PoolError) as error:
                    trouble.append(error)
                if trouble or not self._publisher.connected:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_A_TIME, len(page))):
                group.create_task(serve_some())
        if trouble:
            raise trouble[0]

    async def _serve(self, key_name: str, owed: Obligation) -> None:
        destination = self._destinations[key_name]
        queue = destination.queue if owed.what is Owed.COPY else destination.dead_letters
        if queue is not None:
            async with self._pool.acquire() as connection:
                owing = await read(connection, owed)
            if owing is None or not await self._published(key_name, owing, queue):
                return
        async with self._pool.acquire() as connection:
            await clear(connection, owed)
        reach("republish.cleared")
        self._pauses.pop((owed.what, owed.key), None)

    async def _published(self, key_name: str, owing: Owing, queue: str) -> bool:
        """Return whether the broker has it. If not, that is told, and the obligation pauses."""
        owed, destination, outcome = owing.obligation, self._destinations[key_name], "failed"
        try:
            if owed.what is Owed.COPY:
                properties = copy_of(owing.message, queue=destination.queue)
            else:
                properties = dead_letter_of(owing, queue=destination.queue)
            if properties is None:
                raise _Unfit(
                    "no copy of it would come back as the same message; discard it when that has been looked at"
                )
            reach("republish.sent")
            await self._publisher.publish(
                exchange="",
                routing_key=queue,
                body=owing.message.body,
                properties=properties,
                message_id=owed.message_id,
                timeout_s=self._timeout_s,
            )
            reach("republish.confirmed")
        except PublishError as error:
            problem = str(error)
        except (_Unfit, HeadersTooLarge, MalformedProperties, ValueError) as error:
            problem, outcome = str(error), "unfit"
        else:
            self._republished(destination.name, owed.what, "confirmed")
            return True
        self._republished(destination.name, owed.what, outcome)
        (log.error if outcome == "unfit" else log.warning)(
            f"republish.{outcome}",
            owed=owed.what.value,
            consumer=destination.name,
            message_id=owed.message_id,
            key=str(owed.key),
            queue=queue,
            problem=problem,
            next_try_s=round(self._pause(key_name, owed), 1),
        )
        return False

    def _pausing(self, owed: Obligation) -> bool:
        pause = self._pauses.get((owed.what, owed.key))
        return pause is not None and monotonic() < pause.until

    def _pause(self, key_name: str, owed: Obligation) -> float:
        pause = self._pauses.get((owed.what, owed.key))
        if pause is None:
            pause = _Pause((key_name, owed.what), Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S))
            self._pauses[owed.what, owed.key] = pause
        pause_s = pause.backoff.next_s()
        pause.until = monotonic() + pause_s
        return pause_s


class _Unfit(Exception):
    """What is owed cannot be made from what is on record."""
