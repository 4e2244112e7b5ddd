"""Whether this process is alive, and whether it is ready: two questions with nothing in common.

*Alive* asks whether a restart would help: a task that has to run for as long as the process is dead. No database, no
broker and no backlog is part of it, or an outage would restart the whole fleet. That somebody answers at all shows that
the event loop runs. *Ready* asks whether work is done now: it takes every condition, each with a reason in words, and
is over for good once the process stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

Condition: TypeAlias = Callable[[], str | None]
"""Returns None while all is well, else the reason in words: no secrets, since anybody may read it."""


@dataclass(frozen=True, slots=True)
class Report:
    """An answer.

    :param reasons: what stands in the way, by component; empty if nothing does.
    :param notes: what there is to say besides, and stands in nobody's way.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.reasons


class Health:
    """The health of a process. It is not ready before `started` and after `stopping`."""

    def __init__(self) -> None:
        self._facts: dict[str, str | None] = {"process": "starting"}
        self._conditions: dict[str, Condition] = {}
        self._notes: dict[str, Condition] = {}
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._stopping = False

    def set(self, component: str, ok: bool, reason: str = "") -> None:
        """Say that a component is ready, or why it is not.

        :param reason: in words; needed if it is not.
        """
        self._facts[component] = None if ok else reason or "not ready"

    def condition(self, component: str, condition: Condition) -> None:
        """Ask this each time that somebody asks whether the process is ready. It must answer at once."""
        self._conditions[component] = condition

    def note(self, component: str, note: Condition) -> None:
        """Ask this likewise: what it returns is said, and the process is ready all the same."""
        self._notes[component] = note

    def task(self, name: str, task: asyncio.Task[object]) -> None:
        """Watch a task that has to run for as long as the process: once it is over, a restart is what helps."""
        self._tasks[name] = task

    def started(self) -> None:
        """Everything that the process consists of has been told: from now on its conditions decide."""
        if not self._stopping:
            self._facts["process"] = None

    def stopping(self) -> None:
        """The process stops. It is not ready again, and tasks may end."""
        self._stopping = True
        self._facts["process"] = "stopping"

    def live(self) -> Report:
        """Return whether the process can go on."""
        if self._stopping:
            return Report()
        return Report({name: _end(task) for name, task in self._tasks.items() if task.done()})

    def ready(self) -> Report:
        """Return whether the process does its work now. A condition that fails counts as one that is not met."""
        reasons = {component: reason for component, reason in self._facts.items() if reason is not None}
        return Report(reasons | _told(self._conditions), _told(self._notes))


def _told(conditions: dict[str, Condition]) -> dict[str, str]:
    told = {}
    for component, condition in conditions.items():
        try:
            reason = condition()
        except Exception as error:
            reason = f"its state cannot be told ({type(error).__name__})"
        if reason is not None:
            told[component] = reason
    return told


def _end(task: asyncio.Task[object]) -> str:
    if task.cancelled():
        return "its task was cancelled"
    error = task.exception()
    return "its task has ended" if error is None else f"its task failed ({type(error).__name__})"
