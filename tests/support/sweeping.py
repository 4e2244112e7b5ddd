"""The sweep as a process does it, without a broker: what is seen of the queues is said by the test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from inbox import Policy, Sweeper, Swept
from tests.support.clock import Clock
from tests.support.inboxes import NO_PAUSE, Process

SLACK_S = 600.0
QUIET_S = 240.0
AT_LATEST_S = 86_400.0


@dataclass(slots=True)
class Sweep:
    """One process's sweep for the consumer `billing`.

    `empty` is what a look at the queues says. `moved` counts the outcomes of what was moved on.
    """

    sweeper: Sweeper
    clock: Clock
    empty: bool = True
    moved: Counter[str] = field(default_factory=Counter)

    async def round(self) -> Counter[str]:
        """Do one round, and return what it moved on."""
        before = self.moved.copy()
        await self.sweeper.round()
        return self.moved - before

    async def watched(self) -> Counter[str]:
        """Do rounds until the queues have been seen empty for long enough, and return what they moved on."""
        before = self.moved.copy()
        for _ in range(4):
            await self.clock.move_on(QUIET_S / 3)
            await self.round()
        return self.moved - before


def sweep(
    process: Process, clock: Clock, *, policy: Policy = NO_PAUSE, longest_gap_s: float = 60.0, **rest: Any
) -> Sweep:
    """Return a sweep of a process."""

    async def seen_empty(consumer: str) -> bool:
        assert consumer == "billing"
        return made.empty

    def count(consumer: str, outcome: str) -> None:
        assert consumer == "billing"
        made.moved[outcome] += 1

    swept = Swept(
        consumer="billing",
        policy_for=lambda message_type: policy,
        slack_s=SLACK_S,
        quiet_s=QUIET_S,
        at_latest_s=AT_LATEST_S,
    )
    sweeper = Sweeper(
        process.housekeeping,
        service="test",
        member_id=process.member.id,
        consumers=[swept],
        seen_empty=seen_empty,
        longest_gap_s=longest_gap_s,
        swept=count,
        **rest,
    )
    made = Sweep(sweeper, clock)
    return made
