"""Growing, jittered pauses: processes that lost a server together must not come back together."""

from __future__ import annotations

from tenacity import RetryCallState, wait_exponential_jitter


class Backoff:
    """Pauses that double from `first_s` up to `longest_s`, each with up to half of `first_s` of jitter on top.

    :param first_s: seconds.
    :param longest_s: seconds.
    """

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        self._wait = wait_exponential_jitter(multiplier=first_s, max=longest_s, jitter=first_s / 2)
        self._state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        self.reset()

    def reset(self) -> None:
        """Start with the short pause again."""
        self._state.attempt_number = 0

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        self._state.attempt_number += 1
        return float(self._wait(self._state))
