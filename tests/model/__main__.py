"""Explores all settings and prints what there is: `python -m tests.model [--large]`."""

from __future__ import annotations

import argparse
import sys

from tests.model.explore import explore
from tests.model.protocol import Protocol
from tests.model.settings import LARGE, SMALL


def main() -> int:
    """Print one line for each setting. 1: a rule was broken, and the story is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--large", action="store_true", help="the large settings too")
    settings = SMALL + LARGE if parser.parse_args().large else SMALL
    worlds = steps = 0
    print(f"{'worlds':>10} {'steps':>10} {'settled':>8}  setting")
    for setting in settings:
        found = explore(Protocol(setting))
        print(f"{found.worlds:>10,} {found.steps:>10,} {found.settled:>8,}  {setting.name}", flush=True)
        if found.violation is not None:
            print(found.violation)
            return 1
        worlds, steps = worlds + found.worlds, steps + found.steps
    print(f"{worlds:>10,} {steps:>10,} {'':>8}  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
