"""Errors of the pools, grouped by what a caller can do about them.

PoolError
├── PoolConfigError    change the named key
├── PoolOverBudget     fewer lanes, replicas or pools, or a larger share of the server
├── PoolNotOpen        a bug, or a use after the end
├── PoolTimeout        nothing was free in time: the pool is too small for its work, or something keeps connections
└── NestedAcquire      declare `nested`, or do not take a second connection

What the driver raises while a connection is opened (`asyncpg.PostgresError`, `OSError`) passes through as it is: only
its class and SQLSTATE tell an outage from a wrong password.
"""

from __future__ import annotations

from collections.abc import Sequence


class PoolError(Exception):
    """Root of everything that the pools raise."""


class PoolConfigError(PoolError):
    """A pool cannot be made like this."""

    def __init__(self, *, pool: str, key: str, value: object, allowed: str) -> None:
        self.pool, self.key, self.value, self.allowed = pool, key, value, allowed
        super().__init__(f"pool {pool}: {key} = {value!r} is not possible, allowed is {allowed}")


class PoolOverBudget(PoolError):
    """All pools of all processes together want more connections than this service may take.

    :param shares: for each pool its name and its size in one process.
    :param processes: replicas and surge.
    :param allowed: connections for all processes together.
    :param limited_by: where `allowed` comes from, in words.
    """

    def __init__(self, *, shares: Sequence[tuple[str, int]], processes: int, allowed: int, limited_by: str) -> None:
        self.shares, self.processes, self.allowed, self.limited_by = tuple(shares), processes, allowed, limited_by
        in_one = sum(size for _, size in shares)
        self.wanted = processes * in_one
        listed = ", ".join(f"{name} {size}" for name, size in shares)
        super().__init__(
            f"the pools want {self.wanted} connections and may take {allowed}: {in_one} in one process ({listed}), "
            f"times {processes} processes (replicas and surge), against {limited_by}; "
            "lower lanes, nested, headroom, replicas or surge, or raise that limit"
        )


class PoolNotOpen(PoolError):
    """The pool is not open yet, or is closed."""

    def __init__(self, *, pool: str) -> None:
        self.pool = pool
        super().__init__(f"pool {pool} is not open")


class PoolTimeout(PoolError):
    """No connection became free in time.

    :param size: connections that the pool may hold.
    :param limit: how many it could hold meanwhile: less than `size` while the server refuses more.
    :param waiters: who else waits.
    """

    def __init__(self, *, pool: str, size: int, limit: int, waiters: int, waited_s: float) -> None:
        self.pool, self.size, self.limit, self.waiters, self.waited_s = pool, size, limit, waiters, waited_s
        why = (
            "the pool is smaller than what works on it, or something keeps its connections"
            if limit >= size
            else f"the server refuses more than {limit} of {size} connections: see its limits for our role"
        )
        super().__init__(
            f"pool {pool}: no connection within {waited_s:.3g} s; all {limit} are in use, {waiters} more wait; {why}"
        )


class NestedAcquire(PoolError):
    """Work that holds connections of a pool asked for one more than declared: it could wait for itself for ever."""

    def __init__(self, *, pool: str, nested: int) -> None:
        self.pool, self.nested = pool, nested
        super().__init__(
            f"pool {pool}: a connection was asked for by work that holds {1 + nested} of it already; "
            f"use the connection that is there, or declare nested = {nested + 1} for this pool"
        )
