"""All pools of one process, by name."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Iterator
from functools import partial

from pools.errors import PoolConfigError
from pools.pool import Pool
from pools.spec import PoolSpec
from pools.statistics import PoolStatistics


class Pools:
    """The pools of a process. They open and close together, and share what a server has when that is too little.

    :param dsn: where the database is.
    :raises PoolConfigError: two pools have one name.
    """

    def __init__(self, dsn: str, specs: Iterable[PoolSpec]) -> None:
        self._pools: dict[str, Pool] = {}
        for spec in specs:
            if spec.name in self._pools:
                raise PoolConfigError(pool=spec.name, key="name", value=spec.name, allowed="a name of its own")
            self._pools[spec.name] = Pool(dsn, spec, make_room=partial(self._make_room, spec.name))

    def __getitem__(self, name: str) -> Pool:
        """Return a pool.

        :raises PoolConfigError: there is none of that name.
        """
        pool = self._pools.get(name)
        if pool is None:
            close = difflib.get_close_matches(name, self._pools, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise PoolConfigError(
                pool=name, key="name", value=name, allowed=f"one of {', '.join(sorted(self._pools))}{hint}"
            )
        return pool

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    async def open(self) -> None:
        """Open all pools; none of them connects yet."""
        for pool in self:
            await pool.open()

    def statistics(self) -> list[PoolStatistics]:
        """Return all pools as they are now."""
        return [pool.statistics() for pool in self]

    async def close(self, deadline_s: float) -> None:
        """Close all pools at the same time; what is still checked out at the deadline is cut."""
        async with asyncio.TaskGroup() as closing:
            for pool in self:
                closing.create_task(pool.close(deadline_s))

    def _make_room(self, name: str) -> bool:
        """Let the largest of the others give up a connection: nobody keeps a second one while somebody has none."""
        others = [pool for pool in self if pool.name != name]
        return any(pool.give_up_one() for pool in sorted(others, key=lambda pool: -pool.statistics().open))
