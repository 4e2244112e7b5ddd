"""From a fleet's plan to its pools: sizes from lanes, deadlines from handler timeouts, names for `pg_stat_activity`."""

from __future__ import annotations

from consumers.config.checks import application_name
from consumers.plan import FleetPlan
from pools import PoolSpec, SessionSettings

HOUSEKEEPING = "housekeeping"
"""The pool of the fleet's own work: heartbeats, debts, partitions, probes of nobody in particular."""

_HOUSEKEEPING_STATEMENT_S = 10.0


def pool_specs(plan: FleetPlan) -> list[PoolSpec]:
    """Return the pools that one process opens, the housekeeping pool among them.

    :raises PoolConfigError: a pool cannot be made like this.
    """
    config = plan.config
    specs = []
    names = dict.fromkeys([*config.pools, *(consumer.settings.pool for consumer in plan.consumers.values())])
    for name in names:
        users = [consumer for consumer in plan.consumers.values() if consumer.settings.pool == name]
        settings = config.pools.get(name)
        longest_s = max((user.longest_hold_s for user in users), default=_HOUSEKEEPING_STATEMENT_S)
        specs.append(
            PoolSpec(
                name=name,
                application_name=application_name(config, name),
                session=SessionSettings.for_handlers(longest_s),
                lanes=sum(user.holders for user in users),
                nested=settings.nested if settings else 0,
                headroom=settings.headroom if settings else 1,
                fixed_size=settings.size if settings else None,
                acquire_timeout_s=settings.acquire_timeout_s if settings else 5.0,
                connect_timeout_s=config.database.connect_timeout_s,
            )
        )
    housekeeping = config.database.housekeeping
    specs.append(
        PoolSpec(
            name=HOUSEKEEPING,
            application_name=application_name(config, HOUSEKEEPING),
            session=SessionSettings.for_handlers(_HOUSEKEEPING_STATEMENT_S),
            fixed_size=housekeeping.size,
            acquire_timeout_s=housekeeping.acquire_timeout_s,
            connect_timeout_s=config.database.connect_timeout_s,
        )
    )
    return specs
