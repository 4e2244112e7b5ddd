"""The private servers of the demos of one checkout: started by the first that needs them, stopped by the last.

A demo holds a shared lock on a file as long as it uses them. Whoever gets the exclusive one is alone.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

from servers import Pair, Urls


@contextlib.contextmanager
def servers_in_use(pair: Pair) -> Iterator[ServersInUse]:
    """Hold the pair's servers in use. The last demo that lets go may stop them, if a demo has started them."""
    with (pair.directory / "demos.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield ServersInUse(pair, file.fileno())


class ServersInUse:
    """A pair of servers that this process, and perhaps other demos, use."""

    def __init__(self, pair: Pair, lock: int) -> None:
        self._pair, self._lock = pair, lock
        self._started_by_demo = pair.directory / "started-by-demo"

    def start(self) -> Urls:
        """Start what is not there yet, and remember if nothing was."""
        if not self._pair.runs:
            self._started_by_demo.touch()
        return self._pair.start()

    def keep(self) -> None:
        """Let them run on, whoever has started them."""
        self._started_by_demo.unlink(missing_ok=True)

    def stop_if_last(self) -> None:
        """Stop them if demos have started them and no other one uses them.

        Two demos that end at the same instant may both find the other one there; the next demo then stops them.
        """
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._started_by_demo.exists():
                self._pair.stop()
                self._started_by_demo.unlink()
