"""How many exhaustion records nobody has acknowledged, counted for whoever watches: also where no handler takes them.

Every process of a fleet counts all of them, so processes are not to be added up.
"""

from __future__ import annotations

import asyncio

import structlog

from consumers.plan import FleetPlan
from consumers.telemetry import Telemetry
from inbox import exhaustions
from inbox.claiming import DRIVER_ERRORS, describe
from pools import Pool, PoolError

log = structlog.get_logger(__name__)

_EVERY_S = 15.0


async def count_exhaustions(plan: FleetPlan, pool: Pool, telemetry: Telemetry) -> None:
    """Count until cancelled. A count that fails is logged, and the figures of the last one stay.

    :param pool: not a consumer's.
    """
    names = {consumer.settings.key_name: name for name, consumer in plan.consumers.items()}
    while True:
        try:
            async with pool.acquire() as connection:
                counted = await exhaustions.count(connection, names)
        except (*DRIVER_ERRORS, PoolError) as error:
            log.warning("exhaustions.not_counted", fault=describe(error))
        else:
            for key_name, found in counted.items():
                telemetry.unacknowledged(names[key_name], waiting=found.records - found.stuck, stuck=found.stuck)
        await asyncio.sleep(_EVERY_S)
