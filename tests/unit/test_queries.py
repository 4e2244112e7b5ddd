"""Every statement has a name, every name is used, and none is spelled out in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from inbox import queries
from inbox.queries import query

PACKAGE = Path(str(files("inbox")))
NAMED = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def names() -> list[str]:
    return [name for file in sorted(PACKAGE.glob("sql/queries/*.sql")) for name in NAMED.findall(file.read_text())]


def calls_of_query() -> Iterator[str]:
    for file in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "query":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{file.name}:{node.lineno} has a name made at run time"
                yield argument.value


def test_every_statement_is_used_and_every_used_name_exists() -> None:
    assert sorted(set(names())) == sorted(set(calls_of_query()))


def test_no_name_is_given_twice() -> None:
    assert len(names()) == len(set(names()))


def test_every_statement_stands_below_its_name_and_a_line_that_says_what_for() -> None:
    for file in PACKAGE.glob("sql/queries/*.sql"):
        head, *parts = NAMED.split(file.read_text())
        assert all(line.startswith("--") for line in head.split("\n") if line), f"{file.name}: a statement has no name"
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert text.strip().startswith("-- "), f"{name} does not say what it is for"
            statement = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()
            assert statement.find(";") == len(statement) - 1, f"{name} is not one statement"


@pytest.mark.parametrize("name", names())
def test_a_statement_comes_without_its_comment_and_its_semicolon(name: str) -> None:
    assert re.match(r"(select|insert|update|delete|call|with)\b", query(name))
    assert ";" not in query(name)
    assert "--" not in query(name)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        query("no_such_statement")


def test_two_statements_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "sql" / "queries"
    folder.mkdir(parents=True)
    for file in ("a.sql", "b.sql"):
        (folder / file).write_text("-- name: twice\n-- Anything.\nselect 1;\n")
    monkeypatch.setattr(queries, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="twice"):
        queries._all.__wrapped__()
