"""How often a message is tried, how long it waits in between, and how long one try may take."""

from __future__ import annotations

from dataclasses import dataclass

from inbox.faults import NO_OVERRIDES, Overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The attempt policy of a consumer, or of one of its message types.

    :param max_attempts: charged attempts until the message is `exhausted`.
    :param max_aborts: uncharged attempts (lost sessions, shutdowns, deadlocks) until it is, so that nothing is retried
        for ever.
    :param pacing_s: the pause before attempt 2, 3, … in seconds; the last repeats.
    :param handler_timeout_s: how long a handler may run.
    :param max_reruns: how often a deadlock, a serialization failure or a lock timeout re-runs the handler at once.
    :param faults: what its handlers' errors mean, before the table.
    """

    max_attempts: int = 5
    max_aborts: int = 20
    pacing_s: tuple[float, ...] = (0.0, 5.0, 30.0, 300.0)
    handler_timeout_s: float = 30.0
    max_reruns: int = 3
    faults: Overrides = NO_OVERRIDES

    def __post_init__(self) -> None:
        """Refuse a policy that could not end a message or would never start one."""
        if self.max_attempts < 1 or self.max_aborts < 1:
            raise ValueError("max_attempts and max_aborts must be at least 1")
        if not self.pacing_s or min(self.pacing_s) < 0:
            raise ValueError("pacing needs at least one pause, and none below zero")
        if self.handler_timeout_s <= 0:
            raise ValueError("handler_timeout must be more than zero")
