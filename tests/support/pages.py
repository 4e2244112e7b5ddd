"""The pages that users read, and the blocks of code on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]

_FENCE = re.compile(r"^```(.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Args:
        line: Of its opening fence.
    """

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str | None = None) -> list[Block]:
    """Return all fenced blocks (of one language)."""
    found = []
    for page in PAGES:
        opened: tuple[int, str] | None = None
        inside: list[str] = []
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fence = _FENCE.match(line)
            if fence is None:
                inside.append(line)
            elif opened is None:
                opened, inside = (number, fence[1].strip()), []
            else:
                found.append(Block(page, opened[0], opened[1], "\n".join(inside) + "\n"))
                opened = None
        assert opened is None, f"{page}: a block is not closed"
    return [block for block in found if language is None or block.language == language]
