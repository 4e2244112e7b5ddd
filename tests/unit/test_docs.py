"""The documentation says what the code does: its tables are compared with the code, its tests and links exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]

_ENTRY = re.compile(r"^### (F\d+) (.+)$", re.MULTILINE)
_NAMED_TEST = re.compile(r"^- `(tests/[\w/]+\.py)::(\w+)`$")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def entries() -> dict[str, str]:
    """Return the entries of the page on failure modes by their id."""
    text = (DOCS / "failure-modes.md").read_text(encoding="utf-8")
    starts = list(_ENTRY.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    found = {start[1]: text[start.end() : end].split("\n## ")[0] for start, end in zip(starts, ends, strict=True)}
    assert len(found) == len(starts), "an entry stands there twice"
    return found


def test_every_fault_of_client_and_server_has_an_entry() -> None:
    expected = {f"F{number}" for number in (*range(1, 18), *range(31, 56))}
    assert expected <= entries().keys()


@pytest.mark.parametrize("entry", entries())
def test_every_test_that_an_entry_names_exists(entry: str) -> None:
    text = entries()[entry]
    items = [line for line in text.splitlines() if line.startswith("- ")]
    named = [_NAMED_TEST.match(item) for item in items]
    for item, name in zip(items, named, strict=True):
        assert name, f"{entry} names no test in {item!r}"
        assert (ROOT / name[1]).is_file(), f"{entry}: there is no {name[1]}"
        assert name[2] in functions_of(name[1]), f"{entry}: {name[1]} has no {name[2]}"
    assert named or re.search(r"\*(Does not apply|Not there yet):\*", text), f"{entry} has neither a test nor a reason"


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            yield page, link


def test_every_link_leads_somewhere() -> None:
    for page, link in links():
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{page.name}: {link} leads nowhere"
        assert target.is_relative_to(ROOT)
        if anchor:
            anchors = {slug(heading) for heading in _HEADING.findall(target.read_text(encoding="utf-8"))}
            assert anchor in anchors, f"{page.name}: {target.name} has no heading for #{anchor}"


def slug(heading: str) -> str:
    """Return the anchor that a heading gets on the usual forges."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
