"""What the fleet under test was set up with: names, and budgets that are soon spent."""

from __future__ import annotations

from uuid import UUID

from inbox import Policy, message_key

CONSUMER = "billing"
QUEUE = "billing.work"
SOURCE = "shop"
LANES = 2
MAX_ATTEMPTS = 2
MAX_ABORTS = 3
PAUSE_S = 5.0
CONTENTION_S = 1.0
EXPIRY_S = 30.0

CALM = "calm"
HURRIED = "hurried"
"""Messages of this type have little time, so that their handlers can be let run over it."""


def _policy(handler_timeout_s: float) -> Policy:
    return Policy(
        max_attempts=MAX_ATTEMPTS,
        max_aborts=MAX_ABORTS,
        pacing_s=(0.0, PAUSE_S),
        handler_timeout_s=handler_timeout_s,
        max_reruns=1,
    )


HURRIED_TIMEOUT_S = 1.0
"""Less than any other deadline in a process, so that time can be moved on by so much."""

POLICIES = {"*": _policy(3600.0), HURRIED: _policy(HURRIED_TIMEOUT_S)}

SENDERS = (CALM, CALM, HURRIED)
"""Each sends messages of its type, one after the other."""


def type_of(message_id: str) -> str:
    """Return the type of a message."""
    return message_id.partition("-")[0]


def key_of(message_id: str) -> UUID:
    """Return the key of a message."""
    return message_key(CONSUMER, SOURCE, message_id)
