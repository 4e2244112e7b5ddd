"""Write the table of faults into docs/faults.md, from where it stands in `inbox.faults`.

.venv/bin/python scripts/fault_table.py
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs" / "faults.md"
HEAD = "| met | name | in a handler | in the fleet's own statements | why |"


def table() -> str:
    """Return the table as it stands on the page."""
    from inbox.faults import ELSE, TABLE

    lines = [HEAD, "|---|---|---|---|---|"]
    for row in (*TABLE, ELSE):
        met = f"`{row.key}`" if row.key else "–"
        name = row.name or ("exception type" if not isinstance(row.met, str) else "")
        lines.append(f"| {met} | {name} | `{row.handler.value}` | `{row.fleet.value}` | {row.why} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """Return a page with its table replaced by the one of the code."""
    before, head, after = page.partition(HEAD)
    if not head:
        raise SystemExit(f"{PAGE} has no table that begins with {HEAD}")
    lines = after.split("\n")
    rest = next(number for number, line in enumerate(lines) if number and not line.startswith("|"))
    return before + table() + "\n".join(lines[rest:])


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
