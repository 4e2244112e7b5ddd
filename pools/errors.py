"""Errors of the pools, grouped by what a caller can do about them.

PoolError
├── PoolConfigError    change the named key
├── PoolOverBudget     fewer lanes, replicas or pools, or a larger share of the server
├── PoolNotOpen        a bug, or a use after the end
├── PoolTimeout        nothing was free in time: the pool is too small for its work, or something keeps connections
└── NestedAcquire      declare `nested`, or do not take a second connection
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
    """

    def __init__(
        self, *, shares: Sequence[tuple[str, int]], processes: int, allowed: int, max_connections: int, share: float
    ) -> None:
        self.shares, self.processes, self.allowed = tuple(shares), processes, allowed
        self.wanted = processes * sum(size for _, size in shares)
        listed = ", ".join(f"{name} {size}" for name, size in shares)
        super().__init__(
            f"the pools want {self.wanted} connections (({listed}) × {processes} processes), and may take {allowed}: "
            f"{share:g} of the server's {max_connections}, less its reserve; "
            "lower lanes, headroom, replicas or surge, or raise connection_share or max_connections"
        )


class PoolNotOpen(PoolError):
    """The pool is not open yet, or is closed."""

    def __init__(self, *, pool: str) -> None:
        self.pool = pool
        super().__init__(f"pool {pool} is not open")


class PoolTimeout(PoolError):
    """No connection became free in time."""

    def __init__(self, *, pool: str, size: int, waiters: int, waited_s: float) -> None:
        self.pool, self.size, self.waiters, self.waited_s = pool, size, waiters, waited_s
        super().__init__(
            f"pool {pool}: no connection within {waited_s:.3g} s; all {size} are in use, {waiters} more wait; "
            "the pool is smaller than what works on it, or something keeps its connections"
        )


class NestedAcquire(PoolError):
    """Work that holds connections of a pool asked for one more than declared: it could wait for itself for ever."""

    def __init__(self, *, pool: str, nested: int) -> None:
        self.pool, self.nested = pool, nested
        super().__init__(
            f"pool {pool}: a connection was asked for by work that holds {1 + nested} of them already; "
            f"use the tx that is there, or declare nested = {nested + 1} for this pool"
        )
