"""What a pool tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """A pool at one moment.

    :param size: connections that it may hold. `open` are; `in_use` are checked out or being
        opened, `idle` are open and free.
    :param limit: how many it may hold now: less than `size` while the server refuses more.
    :param waiting: callers that wait for a connection now.
    :param acquires: waits that ended with a connection, so far; `timeouts` those that ended at their deadline.
    :param waited_s_total: time that those waits took so far, opening connections included; `waited_s_max` the longest.
    :param refusals: connections that the server refused because it has or allows no more (SQLSTATE 53300).
    :param terminated: connections that had to be cut.
    """

    name: str
    application_name: str
    size: int
    limit: int
    open: int
    in_use: int
    idle: int
    waiting: int
    acquires: int
    timeouts: int
    waited_s_total: float
    waited_s_max: float
    refusals: int
    terminated: int
