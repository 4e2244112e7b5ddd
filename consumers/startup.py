"""What a process checks before it takes its first delivery, and `inbox-fleet check` too.

A server that cannot be reached raises `DatabaseUnavailable` or `BrokerUnavailable`: whoever starts waits and asks
again. A server that is not what the fleet needs raises by name, and waiting would not help.
"""

from __future__ import annotations

import asyncpg

from consumers.connection import Endpoint, connect
from consumers.database import reaching_database
from consumers.errors import DatabaseUnavailable
from consumers.plan import FleetPlan
from consumers.secrets import Secret
from consumers.sizing import pool_specs
from consumers.topology import verify_topologies
from inbox import Member, UnsafeServer, check_server, is_read_only
from inbox.redaction import host_of
from pools import ConnectionBudget, Pool, connection_budget, detect_transaction_pooler, server_limits


async def verify_database(plan: FleetPlan, url: Secret) -> ConnectionBudget:
    """Check the schema, the settings that durability rests on, what the role may do, and the connection budget, which
    is returned.

    :raises DatabaseUnavailable: nobody answers, we are not let in, or the server takes no writes.
    :raises SchemaError, PrivilegesMissing, UnsafeServer, PoolOverBudget: each says what to do.
    """
    config = plan.config
    with reaching_database(url):
        if await detect_transaction_pooler(url.reveal(), deadline_s=config.database.connect_timeout_s):
            raise UnsafeServer(
                setting="connection",
                value="a pooler that shares server sessions",
                allowed="a direct connection to PostgreSQL",
                why="an attempt's lock and its transaction have to be on one session",
            )
        connection = await asyncpg.connect(url.reveal(), timeout=config.database.connect_timeout_s)
        try:
            if await is_read_only(connection):
                raise DatabaseUnavailable(
                    database=host_of(url.reveal()),
                    problem="it is read-only for this session",
                    hint="a standby, or default_transaction_read_only; a server that takes writes is waited for",
                )
            await check_server(connection)
            budget = connection_budget(
                pool_specs(plan),
                replicas=config.service.replicas,
                surge=config.service.surge,
                share=config.database.connection_share,
                limits=await server_limits(connection),
            )
        finally:
            connection.terminate()
    budget.check()
    return budget


async def register_member(member: Member, pool: Pool, url: Secret) -> None:
    """Make this process known.

    :raises DatabaseUnavailable: nobody answers, or we are not let in.
    """
    with reaching_database(url):
        await member.register(pool)


async def verify_broker(plan: FleetPlan, url: Secret) -> None:
    """Check that all queues and bindings are there, as configured.

    :raises BrokerUnavailable, ChannelLost: nobody answers, or we are not let in.
    :raises TopologyMismatch: names each difference.
    """
    connection = await connect(broker_endpoint(plan, url, "check"))
    try:
        await verify_topologies(connection, plan)
    finally:
        await connection.close()


def broker_endpoint(plan: FleetPlan, url: Secret, purpose: str) -> Endpoint:
    """Return how this fleet reaches the broker, under a name that says what for."""
    broker = plan.config.broker
    return Endpoint(
        url=url.reveal(),
        name=f"{plan.config.service.name}.{purpose}",
        heartbeat_s=broker.heartbeat_s,
        connect_timeout_s=broker.connect_timeout_s,
        operation_timeout_s=broker.operation_timeout_s,
    )
