"""Where log lines go. A reader that has gone away costs lines, never an attempt.

Lines are written straight to the file descriptor: nothing is buffered, so a process that is killed has written all it
said, and a broken pipe does not come back at exit when Python flushes its own buffer.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TextIO

FULL_PIPE_WAIT_S = 0.05
"""How long a line waits for a full non-blocking pipe before it is lost."""


class Output:
    """Writes lines, one at a time, from any thread. The logger that structlog ends in.

    :ivar lost: lines that could not be written.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lost = 0
        self._stream = stream
        # Not a plain lock: a log call may come from a destructor that runs inside another log call of the same thread.
        self._lock = threading.RLock()
        self._torn = False
        self._fd: int | None
        try:
            stream.flush()
            self._fd = stream.fileno()
        except (AttributeError, OSError, ValueError):
            self._fd = None

    def write(self, line: str | bytes) -> None:
        """Write one line, or count it as lost. Never raises an `Exception`."""
        try:
            data = line if isinstance(line, bytes) else line.encode("utf-8", "backslashreplace")
            with self._lock:
                if self._fd is None:
                    self._stream.write(data.decode("utf-8") + "\n")
                    self._stream.flush()
                else:
                    self._write_all(self._fd, data + b"\n")
        except Exception:
            # There is no place left to say so: whoever wants to know reads `lost`, which is also a metric.
            self.lost += 1

    debug = info = warning = warn = error = critical = fatal = exception = msg = log = write

    def _write_all(self, fd: int, data: bytes) -> None:
        if self._torn:
            data = b"\n" + data
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(fd, rest) :]
                except BlockingIOError:
                    if not select.select([], [fd], [], FULL_PIPE_WAIT_S)[1]:
                        raise
        finally:
            # A line that was cut must not swallow the start of the next one.
            if len(rest) < len(data):
                self._torn = bool(rest)
