"""Named statements, read once from `inbox/sql/queries/*.sql`.

Each statement stands in a file under `-- name: …` with a line that says what it is for. The name is the only handle;
a statement is used through the constant in the class that needs it, so an unknown name fails at import.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def _all() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted((files("inbox") / "sql" / "queries").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"two statements are named {name!r}")
            lines = [line for line in text.strip().splitlines() if not line.startswith("--")]
            found[name] = "\n".join(lines).strip().rstrip(";")
    return found


def query(name: str) -> str:
    """Return the statement of that name.

    :raises KeyError: no file has it.
    """
    return _all()[name]
