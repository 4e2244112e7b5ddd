"""Ends servers whose owner died without ending them: run as `python guard.py OWNER_PID DIRECTORY`.

It waits for the owner's end and then removes each pair of servers below the named folder. An owner that ended its
servers itself leaves nothing to do. So a test run that is killed leaves no broker behind.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from servers.pair import remove_all


def main() -> None:
    """Wait for the owner's end, then end what it left."""
    owner, directory = sys.argv[1:]
    try:
        descriptor = os.pidfd_open(int(owner))
    except ProcessLookupError:
        pass  # it ended before we could look
    else:
        if os.fork():
            return  # armed: whoever started this may go on, and has no child to wait for
        os.setsid()
        select.select([descriptor], [], [])
    remove_all(Path(directory))


if __name__ == "__main__":
    main()
