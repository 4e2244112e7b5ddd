"""Pauses of what cannot be done for now: each lasts longer than the one before, until it has been done."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from inbox import Backoff

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Pause:
    backoff: Backoff
    until: float = 0.0


class Pauses(Generic[Key]):
    """The pauses of many things, each by itself.

    :param first_s: seconds.
    :param longest_s: seconds.
    :param clock: returns seconds that only grow.
    """

    def __init__(self, *, first_s: float, longest_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._pauses: dict[Key, _Pause] = {}

    def __contains__(self, key: Key) -> bool:
        """Return whether this has failed and not been done since, whether or not its pause is over."""
        return key in self._pauses

    def __len__(self) -> int:
        return len(self._pauses)

    def on(self, key: Key) -> bool:
        """Return whether this has its pause now."""
        pause = self._pauses.get(key)
        return pause is not None and self._clock() < pause.until

    def begin(self, key: Key) -> float:
        """Begin the next pause of this, and return its seconds."""
        pause = self._pauses.get(key)
        if pause is None:
            pause = self._pauses[key] = _Pause(Backoff(first_s=self._first_s, longest_s=self._longest_s))
        pause_s = pause.backoff.next_s()
        pause.until = self._clock() + pause_s
        return pause_s

    def end(self, key: Key) -> None:
        """This has been done: its next pause is a short one again."""
        self._pauses.pop(key, None)

    def forget(self) -> None:
        """Drop what nobody has tried again for as long as the longest pause: it is gone."""
        past = self._clock() - self._longest_s
        for key in [key for key, pause in self._pauses.items() if pause.until < past]:
            del self._pauses[key]
