"""Growing, jittered pauses: processes that lost a server together must not come back together."""

from __future__ import annotations

from tenacity import RetryCallState, wait_exponential, wait_random_exponential


class Backoff:
    """Pauses of a span that doubles from `first_s` up to `longest_s`: half of it, and a random part of the other half.

    :param first_s: seconds.
    :param longest_s: seconds.
    """

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        halves = {"multiplier": first_s / 2, "max": longest_s / 2}
        # Random in proportion, at the longest too: a jitter that stays small, or is cut off there, would let them march
        # in step after a long outage.
        self._wait = wait_exponential(**halves) + wait_random_exponential(**halves)
        self._state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        self.reset()

    def reset(self) -> None:
        """Start with the short pause again."""
        self._state.attempt_number = 0

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        self._state.attempt_number += 1
        return float(self._wait(self._state))
