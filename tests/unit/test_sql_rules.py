"""What no statement of the fleet's own may do."""

from __future__ import annotations

import re
from pathlib import Path

import inbox
import pools

SOURCES = [
    path
    for package in (inbox, pools)
    for pattern in ("*.sql", "*.py")
    for path in Path(package.__path__[0]).rglob(pattern)
]


def test_no_statement_of_the_fleets_own_notifies() -> None:
    """NOTIFY takes a lock of the whole database at COMMIT, so all commits would wait for each other."""
    assert len(SOURCES) > 20
    notifying = re.compile(r"\bpg_notify\b|(?:^|[;\"'])\s*notify\s+\w", re.IGNORECASE | re.MULTILINE)
    assert [path.name for path in SOURCES if notifying.search(path.read_text(encoding="utf-8"))] == []
