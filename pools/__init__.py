"""Pools as bulkheads: connections by purpose, sized and budgeted, a deadline on every wait. Knows nothing of messages.

spec, session, budget    what a pool is to be, and whether a server has room for all of them
pool, pool_set           the open pools; a checkout is one connection in somebody's hands
opening, slots           how a pool gets a connection, and who waits for one
nesting                  who holds what, so that nobody waits for himself
pooler                   whether something between us and the server mixes sessions up
"""

from pools.budget import ConnectionBudget, ServerLimits, connection_budget, server_limits
from pools.checkout import Checkout
from pools.errors import NestedAcquire, PoolConfigError, PoolError, PoolNotOpen, PoolOverBudget, PoolTimeout
from pools.nesting import work
from pools.opening import Connection
from pools.pool import Pool
from pools.pool_set import Pools
from pools.pooler import detect_transaction_pooler
from pools.session import SESSION_RESET, SessionSettings
from pools.spec import PoolSpec
from pools.statistics import PoolStatistics

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
    "detect_transaction_pooler",
    "server_limits",
    "work",
]
