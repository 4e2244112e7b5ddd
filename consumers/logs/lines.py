"""Make the line of an event.

Structlog's own chain stops at the first processor that raises. Here one processor does every step inside one guard, so
that whatever a handler passes in, its log call returns and its event is written.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
import structlog
from opentelemetry import trace
from structlog.processors import StackInfoRenderer, format_exc_info

from consumers.logs.values import Plain, fields, plain

EventDict: TypeAlias = MutableMapping[str, Any]
Render: TypeAlias = Callable[[dict[str, Plain]], str | bytes]

_HEAD = frozenset({"timestamp", "level", "event"})
_LEVELS = {"warn": "warning", "exception": "error", "fatal": "critical", "msg": "info"}
_encoder = msgspec.json.Encoder()
_stack = StackInfoRenderer()


class Lines:
    """The one processor: facts in, a line out, whatever the facts are.

    :param render: makes the line of plain facts.
    :param constants: facts of the process, on every line.
    """

    def __init__(self, render: Render, constants: dict[str, str]) -> None:
        self._render = render
        self._constants = constants

    def __call__(self, logger: Any, method: str, event: EventDict) -> str | bytes:
        """Return the line of an event; a line that says what went wrong if there can be no better one."""
        try:
            return self._render(self._written(method, event))
        except Exception as fault:
            return self._render(self._described(method, event, fault))

    def _written(self, method: str, event: EventDict) -> dict[str, Plain]:
        facts = structlog.contextvars.get_contextvars()
        facts.update(event)
        if facts.get("exc_info") is not None:
            facts = dict(format_exc_info(None, method, facts))
        if facts.get("stack_info"):
            facts = dict(_stack(None, method, facts))
        line = self._head(method, facts.pop("event", ""))
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line["trace_id"], line["span_id"] = f"{span.trace_id:032x}", f"{span.span_id:016x}"
        for name, value in fields(facts).items():
            # A fact may not take the place of what every line has; it is kept beside it.
            line[f"{name}_" if name in _HEAD else name] = value
        return line

    def _head(self, method: str, event: object) -> dict[str, Plain]:
        return {
            "timestamp": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": _LEVELS.get(method, method),
            "event": plain(event),
            **self._constants,
        }

    def _described(self, method: str, event: EventDict, fault: Exception) -> dict[str, Plain]:
        line = self._head(method, event.get("event", ""))
        line["log_fault"] = plain(fault)
        for name in ("consumer", "message_id", "attempt"):
            if name in event:
                line[name] = plain(event[name])
        return line


def json(line: dict[str, Plain]) -> bytes:
    """Return a line as one JSON object."""
    return _encoder.encode(line)


def console(*, colors: bool) -> Render:
    """Return what makes lines for people.

    :param colors: whether the terminal shows colours.
    """
    renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)

    def render(line: dict[str, Plain]) -> str:
        # What came from outside may hold control characters, which a terminal would obey.
        shown: EventDict = {name: _obeyed_by_nobody(name, value) for name, value in line.items()}
        return str(renderer(None, str(line["level"]), shown))

    return render


def _obeyed_by_nobody(name: str, value: Plain) -> Plain:
    if name in ("exception", "stack"):
        return "".join(c for c in str(value) if c.isprintable() or c in "\n\t")
    if isinstance(value, str) and not value.isprintable():
        return ascii(value)
    return str(value) if name == "event" else value
