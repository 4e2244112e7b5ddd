"""Draw the state machine into docs/lifecycle.md, from the table in `inbox.states`, as a Mermaid diagram.

.venv/bin/python scripts/state_picture.py
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs" / "lifecycle.md"
HEAD = "```mermaid\nstateDiagram-v2\n"
FOOT = "```\n"


def picture() -> str:
    """Return the diagram as it stands on the page: one arrow for all events that lead from one state to another."""
    from inbox.states import TRANSITIONS, State

    arrows: dict[tuple[State, State], list[str]] = {}
    for (before, event), after in TRANSITIONS.items():
        arrows.setdefault((before, after), []).append(event.value)
    lines = [f"[*] --> {State.NEW.value}"]
    lines += [f"{before.value} --> {after.value}: {', '.join(events)}" for (before, after), events in arrows.items()]
    left = {before for before, _ in arrows}
    lines += [f"{state.value} --> [*]" for state in State if state not in left]
    return HEAD + "".join(f"    {line}\n" for line in lines) + FOOT


def written(page: str) -> str:
    """Return a page with its diagram replaced by the one of the code."""
    before, head, after = page.partition(HEAD)
    _, foot, rest = after.partition(FOOT)
    if not head or not foot:
        raise SystemExit(f"{PAGE} has no block that begins with {HEAD!r}")
    return before + picture() + rest


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
