"""The connection budget: all pools × all processes against this service's share of one server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from pools.errors import PoolOverBudget
from pools.spec import PoolSpec

_LIMITS = """
select current_setting('max_connections')::integer as max_connections,
       current_setting('superuser_reserved_connections')::integer
         + coalesce(current_setting('reserved_connections', true)::integer, 0) as reserved,
       rolconnlimit as role_limit
  from pg_roles where rolname = current_user
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBudget:
    """What this service wants of a server, and what it may take.

    :param shares: for each pool its name and its size in one process.
    :param processes: replicas and surge.
    :param allowed: connections for all processes together.
    """

    shares: tuple[tuple[str, int], ...]
    processes: int
    allowed: int
    max_connections: int
    share: float

    @property
    def wanted(self) -> int:
        """Connections that all processes together may open."""
        return self.processes * sum(size for _, size in self.shares)

    def check(self) -> None:
        """Refuse to take more than is allowed.

        :raises PoolOverBudget: names every pool.
        """
        if self.wanted > self.allowed:
            raise PoolOverBudget(
                shares=self.shares,
                processes=self.processes,
                allowed=self.allowed,
                max_connections=self.max_connections,
                share=self.share,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How many connections a server has to give.

    :param role_limit: of our role; None for no limit of its own.
    """

    max_connections: int
    reserved: int
    role_limit: int | None = None


async def server_limits(connection: asyncpg.Connection[Any]) -> ServerLimits:
    """Read the limits of a live server."""
    row = await connection.fetchrow(_LIMITS)
    assert row is not None  # the current role exists
    limit = row["role_limit"]
    return ServerLimits(
        max_connections=row["max_connections"], reserved=row["reserved"], role_limit=None if limit < 0 else limit
    )


def connection_budget(
    specs: Sequence[PoolSpec], *, replicas: int, surge: int, share: float, limits: ServerLimits
) -> ConnectionBudget:
    """Return what the pools of all processes want, and what they may take.

    :param replicas: the most processes that may run at once.
    :param surge: processes on top of these while a new version is rolled out.
    :param share: this service's part of the server's connections, 0 to 1.
    """
    allowed = math.floor(share * (limits.max_connections - limits.reserved))
    if limits.role_limit is not None:
        allowed = min(allowed, limits.role_limit)
    return ConnectionBudget(
        shares=tuple((spec.name, spec.size) for spec in specs),
        processes=replicas + surge,
        allowed=allowed,
        max_connections=limits.max_connections,
        share=share,
    )
