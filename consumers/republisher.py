"""The republisher: publishes what rows owe to the broker, and clears that once the broker has confirmed it.

It reads obligations in pages, oldest first, and serves some of a page at a time. One that cannot be served pauses by
itself, for longer each time, and holds up no other. Where the fault is not the message's, because its queue is missing
or full or the broker confirms nothing, all that would go the same way waits for one pause, and is told of by one line.
None is given up. What is owed stands in the row, so a process that dies at any point leaves the obligation, and at
worst a needless copy, which the inbox absorbs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, Final, TypeAlias
from uuid import UUID

import structlog

from consumers.errors import (
    HeadersTooLarge,
    MalformedProperties,
    PublishError,
    PublishRefused,
    PublishReturned,
    PublishUnconfirmed,
)
from consumers.owed_copies import copy_of, dead_letter_of
from consumers.pauses import Pauses
from consumers.publisher import Publisher
from inbox.claiming import DRIVER_ERRORS, describe
from inbox.obligations import Obligation, Owed, Owing, clear, find, read
from inbox.points import reach
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_PAGE = 200
_AT_A_TIME = 16
_BYTES_AT_A_TIME = 16 * 2**20
"""Of bodies, unless one alone has more: what is owed may be many of the largest messages there are."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0
_LONGEST_WAIT_S = 30.0
_LINE: Final = ""
"""The way to the broker itself. No queue has an empty name."""

_Version: TypeAlias = tuple[str, UUID, int, str, datetime]


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

    def queue_for(self, what: Owed) -> str | None:
        """Return the queue for what is owed."""
        return self.queue if what is Owed.COPY else self.dead_letters


class Republisher:
    """Serves the obligations of one service.

    :param pool: not a consumer's.
    :param destinations: by the consumer's key name.
    :param timeout_s: of one confirmed publish.
    :param republished: told the consumer's name, what was owed, and how it went: "confirmed", "failed", or "unfit",
        when nothing that may be sent can be made of it.
    :param clock: for its pauses; returns seconds that only grow.
    """

    def __init__(
        self,
        pool: Pool,
        publisher: Publisher,
        destinations: Mapping[str, Destination],
        *,
        timeout_s: float,
        republished: Callable[[str, Owed, str], None] = lambda consumer, what, outcome: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._destinations = dict(destinations)
        self._timeout_s = timeout_s
        self._republished = republished
        self._last: dict[tuple[str, Owed], Obligation] = {}
        self._pauses = Pauses[_Version](first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S, clock=clock)
        self._waits = Pauses[str](first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_WAIT_S, clock=clock)

    async def round(self) -> bool:
        """Serve a page of what each consumer's messages owe. Safe beside any other round, also of another process.

        :return: whether there is more to look at, now.
        :raises PoolError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the database does not serve it.
        """
        self._pauses.forget()
        more = False
        for key_name in self._destinations:
            for what in Owed:
                if not self._publisher.connected or self._waits.on(_LINE):
                    return False
                more |= await self._page(key_name, what)
        return more

    async def _page(self, key_name: str, what: Owed) -> bool:
        queue = self._destinations[key_name].queue_for(what)
        if self._closed(queue):
            return False
        place = key_name, what
        async with self._pool.acquire() as connection:
            page = await find(connection, what, key_name, after=self._last.pop(place, None), limit=_PAGE)
        await self._serve_all(key_name, queue, [owed for owed in page if not self._pauses.on(owed.version)])
        if len(page) < _PAGE:
            return False
        # Also where the way was closed meanwhile: those at the front must not be the only ones that are ever tried.
        self._last[place] = page[-1]
        return not self._closed(queue)

    async def _serve_all(self, key_name: str, queue: str | None, page: list[Obligation]) -> None:
        rest, trouble = deque(page), list[BaseException]()

        async def serve(owed: Obligation) -> None:
            try:
                await self._serve(key_name, queue, owed)
            except (*DRIVER_ERRORS, PoolError) as error:
                # It may be for this row alone, which must not be the end of the next round again.
                pause_s = self._pauses.begin(owed.version)
                if not trouble:
                    self._tell_failed(key_name, queue, owed, describe(error), pause_s)
                trouble.append(error)

        while rest and not self._closed(queue):
            async with asyncio.TaskGroup() as group:
                for owed in self._at_once(rest, queue):
                    group.create_task(serve(owed))
            if trouble:
                raise trouble[0]

    def _at_once(self, rest: deque[Obligation], queue: str | None) -> list[Obligation]:
        """Take from the rest what is served at the same time: one if its way was closed before, and few large ones."""
        most = 1 if _LINE in self._waits or (queue or _LINE) in self._waits else _AT_A_TIME
        taken = [rest.popleft()]
        size = taken[0].body_bytes
        while rest and len(taken) < most and size + rest[0].body_bytes <= _BYTES_AT_A_TIME:
            taken.append(rest.popleft())
            size += taken[-1].body_bytes
        return taken

    async def _serve(self, key_name: str, queue: str | None, owed: Obligation) -> None:
        if queue is not None:
            async with self._pool.acquire() as connection:
                owing = await read(connection, owed)
            if owing is None or not await self._published(key_name, queue, owing):
                return
        async with self._pool.acquire() as connection:
            await clear(connection, owed)
        reach("republish.cleared")
        self._pauses.end(owed.version)

    async def _published(self, key_name: str, queue: str, owing: Owing) -> bool:
        """Return whether the broker has it. If not, that is told, and what stands in the way pauses."""
        owed, destination = owing.obligation, self._destinations[key_name]
        try:
            if owed.what is Owed.COPY:
                properties = copy_of(owing.message, queue=destination.queue)
            else:
                properties = dead_letter_of(owing, queue=destination.queue)
            if properties is None:
                raise _Unfit("no copy of it would come back as the same message; look at it, and discard it")
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
            self._republished(destination.name, owed.what, "failed")
            self._failed(key_name, queue, owed, error)
            return False
        except (_Unfit, HeadersTooLarge, MalformedProperties, ValueError) as error:
            problem = str(error)
        else:
            self._republished(destination.name, owed.what, "confirmed")
            self._waits.end(_LINE)
            self._waits.end(queue)
            return True
        self._republished(destination.name, owed.what, "unfit")
        pause_s = self._pauses.begin(owed.version)
        log.error("republish.unfit", **self._said(key_name, queue, owed, problem, pause_s))
        return False

    def _failed(self, key_name: str, queue: str, owed: Obligation, error: PublishError) -> None:
        match error:
            case PublishReturned() | PublishRefused(by_queue=True):
                ways = [queue]
            case PublishUnconfirmed():
                # It may be the line, or the queue alone, which others must not be tried after each time.
                ways = [_LINE, queue]
                if error.sent:
                    # Or this message, which must not be the next one again.
                    self._pauses.begin(owed.version)
            case _:
                self._tell_failed(key_name, queue, owed, str(error), self._pauses.begin(owed.version))
                return
        # Those that were under way at the same time say the same.
        if not any(self._waits.on(way) for way in ways):
            pause_s = max(self._waits.begin(way) for way in ways)
            log.warning("republish.waiting", **self._said(key_name, queue, owed, str(error), pause_s))

    def _closed(self, queue: str | None) -> bool:
        if queue is None:
            return False
        return not self._publisher.connected or self._waits.on(_LINE) or self._waits.on(queue)

    def _tell_failed(self, key_name: str, queue: str | None, owed: Obligation, problem: str, pause_s: float) -> None:
        log.warning("republish.failed", **self._said(key_name, queue, owed, problem, pause_s))

    def _said(self, key_name: str, queue: str | None, owed: Obligation, problem: str, pause_s: float) -> dict[str, Any]:
        return {
            "owed": owed.what.value,
            "consumer": self._destinations[key_name].name,
            "message_id": owed.message_id,
            "key": str(owed.key),
            "queue": queue,
            "problem": problem,
            "next_try_s": round(pause_s, 1),
        }


class _Unfit(Exception):
    """What is owed cannot be made from what is on record."""
