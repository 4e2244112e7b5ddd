"""Consumers: what services write handlers with.

The names below are loaded when they are first used, so that the command line starts without the drivers of broker and
database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumers.registry import Consumer
    from inbox import Attempt, Envelope, ExhaustionRecord, Reject, Retry, Tx

__all__ = ["Attempt", "Consumer", "Envelope", "ExhaustionRecord", "Reject", "Retry", "Tx"]

_HOMES = {
    "Attempt": "inbox",
    "Consumer": "consumers.registry",
    "Envelope": "inbox",
    "ExhaustionRecord": "inbox",
    "Reject": "inbox",
    "Retry": "inbox",
    "Tx": "inbox",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
