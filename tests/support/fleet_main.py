"""`python -m tests.support.fleet_main`: the command `inbox-fleet`, which dies or freezes at a named point.

`--kill-at POINT[:NTH]` sends itself SIGKILL when it reaches the point for the n-th time, `--freeze-at POINT[:NTH]`
sends itself SIGSTOP. All other arguments go to `inbox-fleet` as they are; without the name of a command, it is `run`.
"""

from __future__ import annotations

import argparse
import os
import signal

from consumers.cli import main as command
from inbox import points


class Trap:
    """A signal to oneself at the n-th passage of a point."""

    def __init__(self, text: str, number: signal.Signals) -> None:
        self.point, _, nth = text.partition(":")
        known = (
            *points.POINTS,
            *points.EXHAUSTED_POINTS,
            *points.REPLAY_POINTS,
            *points.SWEEP_POINTS,
            *points.REPUBLISH_POINTS,
            *points.OVERSIZE_POINTS,
        )
        if self.point not in known:
            raise argparse.ArgumentTypeError(f"no point is named {self.point!r}; there are: {', '.join(known)}")
        self.left = int(nth or "1")
        self.number = number

    def __call__(self, point: str) -> None:
        """Count a passage and spring at the last."""
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)


def main() -> None:
    """Set the trap and run the command."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--kill-at", dest="traps", action="append", type=lambda text: Trap(text, signal.SIGKILL))
    parser.add_argument("--freeze-at", dest="traps", action="append", type=lambda text: Trap(text, signal.SIGSTOP))
    options, rest = parser.parse_known_args()
    if options.traps:

        def passing(point: str) -> None:
            for trap in options.traps:
                trap(point)

        points.listen(passing)
    command(rest if rest and not rest[0].startswith("-") else ["run", *rest])


if __name__ == "__main__":
    main()
