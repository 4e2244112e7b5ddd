"""Named points at which a process may die: of attempts and what follows from them, replays, the sweep, republishing,
and of messages that are too large.

In production nobody listens and `reach` is one comparison. A test harness installs a listener that kills the process
at the point it was told, so that "safe against SIGKILL at any point" is proven point by point.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "delivery.received",
    "claim.answered",
    "start.sent",
    "start.committed",
    "effects.done",
    "failure.sent",
    "failure.committed",
    "commit.sent",
    "commit.answered",
    "park.sent",
    "park.confirmed",
    "ack.before",
    "ack.after",
)
EXHAUSTED_POINTS = (
    "exhausted.counted",
    "exhausted.claimed",
    "exhausted.effects",
    "exhausted.commit_sent",
    "exhausted.commit_answered",
)
REPLAY_POINTS = (
    "replay.frozen",
    "replay.begun",
    "replay.item_sent",
    "replay.item_committed",
    "replay.judged",
    "replay.all_done",
    "replay.ended",
)
SWEEP_POINTS = (
    "sweep.judged",
    "sweep.marked",
)
REPUBLISH_POINTS = (
    "republish.sent",
    "republish.confirmed",
    "republish.cleared",
)
OVERSIZE_POINTS = (
    "oversize.sent",
    "oversize.confirmed",
    "oversize.rejected",
)

_listener: Callable[[str], None] | None = None


def listen(listener: Callable[[str], None] | None) -> None:
    """Install the listener, or remove it with None. For test harnesses."""
    global _listener
    _listener = listener


def armed() -> bool:
    """Return whether anybody listens: "sent" points cost a turn of the loop, which production does not pay."""
    return _listener is not None


def reach(point: str) -> None:
    """Tell the listener, if there is one, that this point is reached."""
    if _listener is not None:
        _listener(point)
