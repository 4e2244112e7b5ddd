"""What one process of a service does for all of them: each a duty, tried for by every process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from consumers.config import FleetConfig
from consumers.telemetry import Telemetry
from inbox import Cleaner, Horizons, Member
from inbox.duties import Duty
from pools import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDuties:
    """The duties of one service, as one process of it takes part in them.

    :param pool: not a consumer's.
    """

    config: FleetConfig
    pool: Pool
    member: Member
    telemetry: Telemetry

    def work(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Return a name and a task for each duty. A task runs until cancelled."""
        yield "retention", self._duty("clean", every_s=self.config.retention.every_s).run(self._clean())

    def _duty(self, name: str, *, every_s: float) -> Duty:
        return Duty(
            pool=self.pool, service=self.config.service.name, name=name, member_id=self.member.id, every_s=every_s
        )

    def _clean(self) -> Callable[[], Awaitable[bool]]:
        """Remove what is past its time."""
        config = self.config
        return Cleaner(
            self.pool,
            service=config.service.name,
            consumers=[consumer.key_name for consumer in config.consumers.values()],
            horizons=Horizons(
                receipts_s=config.receipts.retention_s,
                messages_s=config.retention.terminal_s,
                exhaustions_s=config.retention.exhaustions_s,
                history_s=config.retention.history_s,
                replays_s=config.retention.replays_s,
            ),
            removed=self.telemetry.removed,
        ).round
