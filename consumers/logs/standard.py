"""Route the standard library's logging into the same lines, and bound what the libraries underneath say.

A broker that is away for an hour makes its client repeat itself; each kind of line gets a few places a minute, and the
next one that is written tells how many were held back. A handler's own loggers are not bounded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import structlog
from structlog.stdlib import ExtraAdder, ProcessorFormatter

from consumers.logs.lines import EventDict, Lines
from consumers.logs.output import Output

LIBRARIES = ("aio_pika", "aiormq", "asyncio", "asyncpg", "opentelemetry", "pamqp", "uvicorn")
"""Loggers of the libraries underneath; they are heard from WARNING on."""

NOISE_LINES = 5
NOISE_WINDOW_S = 60.0


def route_standard_library(output: Output, lines: Lines, threshold: int) -> None:
    """Write what the standard library's loggers and warnings say, in place of an earlier routing.

    :param threshold: numeric level of the lowest line that is written.
    """
    root = logging.getLogger()
    for former in [one for one in root.handlers if isinstance(one, LineHandler)]:
        root.removeHandler(former)
    root.addHandler(LineHandler(output, lines))
    root.setLevel(threshold)
    logging.captureWarnings(True)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


class LineHandler(logging.Handler):
    """Writes records of the standard library as the lines that structlog would have made of them."""

    def __init__(self, output: Output, lines: Lines) -> None:
        super().__init__()
        self._output = output
        self._lines = lines
        self._noise = Noise()
        self.setFormatter(
            ProcessorFormatter(
                foreign_pre_chain=[structlog.stdlib.add_logger_name, ExtraAdder()],
                processors=[ProcessorFormatter.remove_processors_meta, self._line],
            )
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Never raises an `Exception`, and never prints to standard error as logging itself would."""
        try:
            if record.name.partition(".")[0] in LIBRARIES:
                held_back = self._noise.admit(f"{record.name} {record.levelno} {str(record.msg)[:120]}")
                if held_back is None:
                    return
                if held_back:
                    record.held_back = held_back
            self._output.write(self.format(record))
        except Exception as fault:
            event = {"event": record.msg, "logger": record.name, "arguments": record.args, "log_fault": fault}
            self._output.write(self._lines(None, record.levelname.lower(), event))

    def _line(self, logger: Any, method: str, event: EventDict) -> str:
        line = self._lines(logger, method, event)
        return line if isinstance(line, str) else line.decode("utf-8")


class Noise:
    """Lets each kind of line through a bounded number of times in a window, and counts the rest.

    :param clock: seconds that only grow.
    """

    _MAX_KINDS = 256

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def admit(self, kind: str) -> int | None:
        """Return None if a line of this kind must be held back, else how many were since the last one that was told."""
        now = self._clock()
        window = self._windows.get(kind)
        if window is None or now - window.since_s >= NOISE_WINDOW_S:
            if window is None and len(self._windows) >= self._MAX_KINDS:
                self._windows.clear()
            self._windows[kind] = _Window(now)
            return 0 if window is None else window.held_back
        if window.written < NOISE_LINES:
            window.written += 1
            return 0
        window.held_back += 1
        return None


class _Window:
    __slots__ = ("held_back", "since_s", "written")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.written = 1
        self.held_back = 0
