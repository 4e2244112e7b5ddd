"""What fleet processes say of their attempts and of themselves, and which outcomes cost a message nothing."""

from __future__ import annotations

from collections import Counter

from tests.support.eventually import eventually
from tests.support.process import FleetProcess

FREE = frozenset(
    {"processed", "duplicate", "contended", "undecided", "early", "unknown", "unavailable", "stopped", "aborted"}
)
"""Outcomes that are charged to nobody; whatever else stands in a log was charged, or has ended its message."""


def outcomes(*processes: FleetProcess) -> Counter[str]:
    """Return how many attempts of these processes had each outcome so far."""
    return Counter(event["outcome"] for process in processes for event in process.events("attempt.settled"))


def nothing_charged(*processes: FleetProcess) -> None:
    """Assert that no attempt of these processes was charged, and that none ended its message without effect."""
    seen = outcomes(*processes)
    assert seen.keys() <= FREE, seen


async def not_ready(process: FleetProcess, within_s: float) -> str:
    """Wait until a process says that it is not ready, and return its words."""

    async def says_so() -> str | None:
        status, body = await process.get("/readyz")
        return body if status == 503 else None

    said = await eventually(says_so, within_s, what="the process saying that it is not ready", every_s=0.1)
    assert said is not None
    return said


async def alive(process: FleetProcess) -> bool:
    """Return whether a process runs and says that no restart would help it."""
    assert process.exit_code is None, f"it exited with {process.exit_code}:\n{process.output[-4000:]}"
    status, body = await process.get("/livez")
    assert status == 200, body
    return True
