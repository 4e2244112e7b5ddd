"""Pools as bulkheads: connections by purpose, sized and budgeted, a deadline on every wait. Knows nothing of messages.

spec, session, budget    what a pool is to be, and whether a server has room for all of them
pool, pool_set           the open pools
nesting                  who holds what, so that nobody waits for himself
"""

from pools.budget import ConnectionBudget, ServerLimits, connection_budget, server_limits
from pools.errors import NestedAcquire, PoolConfigError, PoolError, PoolNotOpen, PoolOverBudget, PoolTimeout
from pools.nesting import work
from pools.pool import Checkout, Connection, Pool, PoolStatistics
from pools.pool_set import Pools
from pools.session import SESSION_RESET, SessionSettings
from pools.spec import PoolSpec

__all__ = [
    "SESSION_RESET",
    "Checkout",
    "Connection",
    "ConnectionBudget",
    "NestedAcquire",
    "Pool",
    "PoolConfigError",
    "PoolError",
    "PoolNotOpen",
    "PoolOverBudget",
    "PoolSpec",
    "PoolStatistics",
    "PoolTimeout",
    "Pools",
    "ServerLimits",
    "SessionSettings",
    "connection_budget",
    "server_limits",
    "work",
]
