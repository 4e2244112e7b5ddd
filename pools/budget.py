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
       (select rolconnlimit from pg_roles where rolname = session_user) as role_limit,
       (select datconnlimit from pg_database where datname = current_database()) as database_limit
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBudget:
    """What this service wants of a server, and what it may take.

    :param shares: for each pool its name and its size in one process.
    :param processes: replicas and surge.
    :param allowed: connections for all processes together.
    :param limited_by: where `allowed` comes from, in words.
    """

    shares: tuple[tuple[str, int], ...]
    processes: int
    allowed: int
    limited_by: str

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
                limited_by=self.limited_by,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How many connections a server has to give.

    :param reserved: connections that it keeps for others.
    :param role_limit: of our role; None for no limit of its own.
    :param database_limit: of our database; None for no limit of its own.
    """

    max_connections: int
    reserved: int
    role_limit: int | None = None
    database_limit: int | None = None


async def server_limits(connection: asyncpg.Connection[Any]) -> ServerLimits:
    """Read the limits of a live server."""
    row = await connection.fetchrow(_LIMITS)
    assert row is not None  # it has no FROM
    return ServerLimits(
        max_connections=row["max_connections"],
        reserved=row["reserved"],
        role_limit=_own(row["role_limit"]),
        database_limit=_own(row["database_limit"]),
    )


def connection_budget(
    specs: Sequence[PoolSpec], *, replicas: int, surge: int, share: float, limits: ServerLimits
) -> ConnectionBudget:
    """Return what the pools of all processes want, and what they may take.

    :param replicas: the most processes that may run at once.
    :param surge: processes on top of these while a new version is rolled out.
    :param share: this service's part of the server's connections, 0 to 1.
    """
    whole = limits.max_connections - limits.reserved
    ceilings = [
        # A share such as 0.29 of 100 is 28.999999999999996 in binary.
        (math.floor(share * whole + 1e-9), f"{share:g} of the server's {whole} (max_connections less its reserve)")
    ]
    if limits.role_limit is not None:
        ceilings.append((limits.role_limit, "the connection limit of our role"))
    if limits.database_limit is not None:
        ceilings.append((limits.database_limit, "the connection limit of the database"))
    allowed, limited_by = min(ceilings)
    return ConnectionBudget(
        shares=tuple((spec.name, spec.size) for spec in specs),
        processes=replicas + surge,
        allowed=allowed,
        limited_by=limited_by,
    )


def _own(limit: int) -> int | None:
    return None if limit < 0 else limit
