"""The named points at which a process may die are those that the code passes."""

from __future__ import annotations

import ast
from pathlib import Path

from inbox import points

ROOT = Path(points.__file__).resolve().parents[1]


def test_every_point_that_is_reached_has_a_name_and_every_name_stands_in_the_code() -> None:
    named = [point for name, value in vars(points).items() if name.endswith("POINTS") for point in value]
    assert len(named) == len(set(named))
    written, reached = _words()
    assert reached <= set(named) <= written


def test_every_list_of_points_is_gone_through_by_a_test_that_kills_at_each() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "faults").glob("*.py"))
    for name, value in vars(points).items():
        if name.endswith("POINTS"):
            assert name in tests or all(f'"{point}"' in tests for point in value), name


def _words() -> tuple[set[str], set[str]]:
    """Return the strings of the code, and those of them that are handed to `reach` as they are."""
    written, reached = set(), set()
    for package in ("consumers", "inbox"):
        for path in (ROOT / package).rglob("*.py"):
            if path == Path(points.__file__):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    written.add(node.value)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
                    reached |= {point.value for point in node.args if isinstance(point, ast.Constant)}
    return written, reached
