"""Set structlog and the standard library's logging up as one stream of lines that cannot fail."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, TextIO

import structlog

from consumers.logs.lines import Lines, console, json
from consumers.logs.output import Output
from consumers.logs.standard import route_standard_library

_METHODS = ("debug", "info", "msg", "warning", "warn", "error", "exception", "critical", "fatal", "log")


class Format(str, Enum):
    """How lines look. `AUTO` is console where a person looks on, JSON otherwise."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


def configure(
    *,
    format: Format = Format.AUTO,  # noqa: A002  # the name of the setting
    level: str = "info",
    stream: TextIO | None = None,
    service: str | None = None,
    build: str | None = None,
) -> Output:
    """Set logging up for this process; called once, before the first line. Returns the place that lines go to.

    :param level: the lowest level that is written: debug, info, warning, error, critical.
    :param stream: standard output if None.
    :param service: name of the service, on every line.
    :param build: version of what runs, on every line.
    :raises KeyError: there is no such level.
    """
    stream = stream or sys.stdout
    threshold = logging.getLevelNamesMapping()[level.upper()]
    output = Output(stream)
    person = _is_terminal(stream)
    as_console = format is Format.CONSOLE or (format is Format.AUTO and person)
    constants = {name: value for name, value in (("service", service), ("build", build)) if value}
    lines = Lines(console(colors=person and not os.environ.get("NO_COLOR")) if as_console else json, constants)
    structlog.configure(
        processors=[lines],
        wrapper_class=_fail_open(threshold),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=True,
    )
    route_standard_library(output, lines, threshold)
    return output


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _fail_open(threshold: int) -> type[structlog.typing.FilteringBoundLogger]:
    """Return structlog's logger for a threshold, with calls that do not raise when an event and its arguments clash."""
    filtering = structlog.make_filtering_bound_logger(threshold)
    methods: dict[str, Any] = {}
    for name in _METHODS:
        methods[name] = _guarded(name, getattr(filtering, name))
        methods[f"a{name}"] = _guarded_async(name, getattr(filtering, f"a{name}"))
    return type("Logger", (filtering,), methods)


def _guarded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **facts: Any) -> Any:
        try:
            return method(self, *args, **facts)
        except Exception as fault:
            return _clash(self, name, args, facts, fault)

    return call


def _guarded_async(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: Any, *args: Any, **facts: Any) -> Any:
        try:
            return await method(self, *args, **facts)
        except Exception as fault:
            return _clash(self, name, args, facts, fault)

    return call


def _clash(logger: Any, name: str, args: tuple[Any, ...], facts: dict[str, Any], fault: Exception) -> Any:
    level, args = ("error", args[1:]) if name == "log" else (name, args)
    others = {f"{key}_" if key in ("event", "method_name") else key: value for key, value in facts.items()}
    event, arguments = (args[0], args[1:]) if args else ("", ())
    return logger._proxy_to_logger(level, event, **{**others, "arguments": arguments, "log_fault": fault})
