"""What `inbox-fleet check` looks at: everything that a start would refuse or wait for, and nothing is changed by it.

The steps are those of a start, taken by the same functions; a start ends at the first problem, and this goes on with
what does not depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from consumers.config import FleetConfig
from consumers.errors import BrokerUnavailable, ChannelLost, DatabaseUnavailable, TopologyMismatch
from consumers.plan import FleetPlan
from consumers.startup import verify_broker, verify_database
from consumers.topology import topologies
from inbox import PrivilegesMissing, SchemaError, UnsafeServer, migrations
from inbox.redaction import host_of
from pools import PoolOverBudget


class Status(str, Enum):
    """How one check came out."""

    OK = "ok"
    UNFIT = "unfit"
    UNREACHABLE = "unreachable"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the answer.

    :param check: what was looked at: "schema".
    :param subject: where: a host, a queue.
    :param detail: what was found, or what is wrong and what to do.
    """

    check: str
    subject: str
    status: Status
    detail: str


async def examine(plan: FleetPlan) -> list[Finding]:
    """Look at database and broker, both at once, and return what was found.

    :raises ConfigError: a URL cannot be read, or with these settings messages would be lost.
    """
    topologies(plan)
    database, broker = await asyncio.gather(_database(plan), _broker(plan))
    return [_configuration(plan.config), *_resources(plan), *database, *broker]


def _configuration(config: FleetConfig) -> Finding:
    names = ", ".join(sorted(config.consumers))
    return Finding(check="configuration", subject=config.file, status=Status.OK, detail=f"consumers: {names}")


def _resources(plan: FleetPlan) -> list[Finding]:
    """Lifespans are not opened here, so what they do not name is not known."""
    return [
        Finding(
            check="resources",
            subject=f"consumer {consumer.name}",
            status=Status.NOT_CHECKED,
            detail=f"seen at a start alone, unless lifespans are annotated by what they yield: {unseen}",
        )
        for consumer in plan.consumers.values()
        for unseen in consumer.unseen
    ]


async def _database(plan: FleetPlan) -> list[Finding]:
    url = plan.config.database_url()
    host = host_of(url.reveal())
    steps = ("database", "schema and settings", "connections")
    try:
        budget = await verify_database(plan, url)
    except DatabaseUnavailable as error:
        return _ended(steps, 0, host, Status.UNREACHABLE, [f"{error.problem}; {error.hint}"])
    except (SchemaError, PrivilegesMissing, UnsafeServer) as error:
        return _ended(steps, 1, host, Status.UNFIT, [str(error)])
    except PoolOverBudget as error:
        return _ended(steps, 2, host, Status.UNFIT, [str(error)])
    listed = " + ".join(f"{name} {size}" for name, size in budget.shares)
    wants = f"{budget.wanted} of {budget.allowed} allowed: ({listed}) x {budget.processes} processes"
    return [
        *_passed(steps[:1], host),
        Finding(check=steps[1], subject=host, status=Status.OK, detail=f"version {migrations()[-1].number}"),
        Finding(check=steps[2], subject=host, status=Status.OK, detail=wants),
    ]


async def _broker(plan: FleetPlan) -> list[Finding]:
    url = plan.config.broker_url()
    host = host_of(url.reveal())
    steps = ("broker", "topology")
    try:
        await verify_broker(plan, url)
    except BrokerUnavailable as error:
        return _ended(steps, 0, host, Status.UNREACHABLE, [f"{error.problem}; {error.hint}"])
    except ChannelLost as error:
        return _ended(steps, 0, host, Status.UNREACHABLE, [str(error)])
    except TopologyMismatch as error:
        return _ended(steps, 1, host, Status.UNFIT, error.differences)
    queues = ", ".join(sorted(consumer.settings.queue for consumer in plan.consumers.values()))
    return [*_passed(steps[:1], host), Finding(check=steps[1], subject=host, status=Status.OK, detail=queues)]


def _passed(steps: Sequence[str], host: str) -> list[Finding]:
    return [Finding(check=step, subject=host, status=Status.OK, detail="") for step in steps]


def _ended(steps: Sequence[str], at: int, host: str, status: Status, problems: Sequence[str]) -> list[Finding]:
    """Return the findings of steps of which one did not pass: those before it did, those after were not taken."""
    failed = [Finding(check=steps[at], subject=host, status=status, detail=problem) for problem in problems]
    after = [
        Finding(check=step, subject=host, status=Status.NOT_CHECKED, detail=f"needs: {steps[at]}")
        for step in steps[at + 1 :]
    ]
    return [*_passed(steps[:at], host), *failed, *after]
