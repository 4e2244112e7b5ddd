"""How many unfinished messages of a consumer may be on record.

Each message that failed and waits has its row, with its bytes. A dependency that is down for everybody would put a
whole backlog there. So the rows of each consumer are counted every few seconds, and one that has reached its bound
begins no message that is not on record: such a message waits in the broker, uncounted, while those on record run on.
Beginning goes on when some room has been made, so that it does not flicker at the bound.

Between two counts each process adds what it puts on record itself. So the bound is passed by no more than the attempts
that run at that moment, and by what other processes put on record since the last count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from inbox.claiming import DRIVER_ERRORS, describe
from inbox.queries import query
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_COUNT = query("count_open")
_EVERY_S = 2.0
_TIMEOUT_S = 5.0
_ROOM = 0.95


class Bound:
    """The bound of one consumer.

    :param consumer: its key name.
    :param max_open: unfinished messages on record at which it begins no other.
    """

    def __init__(self, consumer: str, max_open: int) -> None:
        self.consumer = consumer
        self.max_open = max_open
        self.open = 0
        self._full = False
        self._added = 0

    def may_begin(self) -> bool:
        """Whether a message that is not on record may be begun."""
        return not self._full

    @property
    def is_full(self) -> bool:
        """Whether the consumer begins no message that is not on record."""
        return self._full

    def added(self) -> None:
        """This process has put a message on record."""
        self._added += 1
        self._judge()

    def counted(self, number: int, *, known_before: int) -> None:
        """So many are on record.

        :param known_before: what `begin_count` returned before they were counted.
        """
        self.open = number
        self._added -= known_before
        self._judge()

    def begin_count(self) -> int:
        """Return how many messages this process has added since the last count."""
        return self._added

    def note(self) -> str | None:
        """Return what there is to say to people, or None."""
        if not self._full:
            return None
        return (
            f"full: {self.open} unfinished messages are on record (max_open = {self.max_open}); those run on, and "
            "others wait in the broker"
        )

    def _judge(self) -> None:
        known = self.open + self._added
        if not self._full and known >= self.max_open:
            self._full = True
            log.warning("consumer.full", consumer=self.consumer, open=known, max_open=self.max_open)
        elif self._full and known < self.max_open * _ROOM:
            self._full = False
            log.info("consumer.not_full", consumer=self.consumer, open=known, max_open=self.max_open)


async def count_open(pool: Pool, bounds: Iterable[Bound], *, every_s: float = _EVERY_S) -> None:
    """Count until cancelled. A count that fails is logged, and what was known stays.

    :param pool: not a consumer's.
    :param every_s: seconds between two counts.
    """
    by_name = {bound.consumer: bound for bound in bounds}
    while True:
        before = {name: bound.begin_count() for name, bound in by_name.items()}
        try:
            async with pool.acquire() as connection:
                rows = await connection.fetch(
                    _COUNT, list(by_name), [bound.max_open for bound in by_name.values()], timeout=_TIMEOUT_S
                )
        except (*DRIVER_ERRORS, PoolError) as error:
            log.warning("consumers.not_counted", fault=describe(error))
        else:
            for row in rows:
                by_name[row["consumer"]].counted(row["number"], known_before=before[row["consumer"]])
        await asyncio.sleep(every_s)
