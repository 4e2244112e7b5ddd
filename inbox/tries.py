"""A record that is due, and how one try of it ends, as values: each says what is already durable in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A record that may be tried now, by its identity."""

    id: UUID
    key: UUID
    generation: int
    exhausted_at: datetime


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Effects and acknowledgement are committed."""

    tries: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The try is charged, and the record waits."""

    tries: int
    delay_s: float
    error_class: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """The try was nobody's fault, and the record waits."""

    delay_s: float
    error_class: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """The record is out of tries, or its handler has rejected it: it waits for an operator."""

    tries: int
    error_class: str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The try was stale: acknowledged meanwhile, or tried by somebody else. Nothing of it is committed."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The session was lost, perhaps around COMMIT: the next look at the record finds out."""

    fault: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The database serves nobody now."""

    fault: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """No handler ran: not due any more, or somebody else's."""


TryOutcome: TypeAlias = Acknowledged | Failed | Aborted | Stuck | Lost | Unknown | Unavailable | Skipped
