"""The documentation says what the code does: its tables are compared with the code, its tests and links exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import MappingProxyType

import click
import msgspec
import pytest

import fault_table
import state_picture
from consumers.cli import main
from consumers.cli.exits import Exit
from consumers.config import FleetConfig, parse, settings
from consumers.config.quantities import Seconds
from consumers.config.settings import Settings
from consumers.config.sizes import Size
from consumers.config.sizes import text as size_text
from consumers.telemetry import names, outcome_label
from inbox.durations import text as written
from inbox.faults import Fault
from inbox.states import TRANSITIONS
from tests.support.pages import DOCS, PAGES, ROOT, Block, blocks
from tests.unit.test_lane import FATES

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


def test_every_fault_of_broker_database_and_attempts_has_an_entry() -> None:
    expected = {f"F{number}" for number in range(1, 67)}
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


def table(page: str, *columns: str) -> list[list[str]]:
    """Return the rows of the one table of a page that begins with these columns, backquotes removed."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if cells(line)[: len(columns)] == list(columns)]
    assert len(starts) == 1, f"{page} has {len(starts)} tables with the columns {columns}"
    rows = []
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip("`") for cell in cells(line)])
    return rows


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def test_the_states_are_those_of_the_code() -> None:
    rows = [tuple(row[:3]) for row in table("lifecycle.md", "from", "event", "to")]
    assert rows == [(state.value, event.value, after.value) for (state, event), after in TRANSITIONS.items()]


def test_the_picture_of_the_states_is_that_of_the_code() -> None:
    page = (DOCS / "lifecycle.md").read_text(encoding="utf-8")
    assert page == state_picture.written(page), "scripts/state_picture.py draws it anew"
    (drawn,) = [block.text for block in blocks("mermaid")]
    arrows = re.findall(r"^    (\w+) --> (\w+): (.+)$", drawn, re.MULTILINE)
    told = {(before, event, after) for before, after, events in arrows for event in events.split(", ")}
    assert told == {(state.value, event.value, after.value) for (state, event), after in TRANSITIONS.items()}


def test_the_faults_are_those_of_the_code() -> None:
    page = (DOCS / "faults.md").read_text(encoding="utf-8")
    assert page == fault_table.written(page), "scripts/fault_table.py writes it anew"
    said = {word for word, *_ in table("faults.md", "word", "charged")}
    assert said == {fault.value for fault in Fault}
    of_records = [word for words, *_ in table("faults.md", "judged", "charged") for word in re.split("`?, `?", words)]
    assert sorted(of_records) == sorted(said)


def test_what_becomes_of_a_delivery_is_what_a_lane_does() -> None:
    done: dict[str, set[str]] = {"unavailable": {"keep"}}
    for outcome, fate in FATES:
        done.setdefault(outcome_label(outcome), set()).add(fate.partition(":")[0])
    done["aborted"].add("park")  # the same case as `waiting`, whose pause alone decides
    said = {label: set(verbs.replace("`", "").split(" or ")) for label, verbs, *_ in table("lifecycle.md", "outcome")}
    assert said == done


def test_every_block_has_a_language_that_is_checked() -> None:
    assert {block.language for block in blocks()} <= {"python", "toml", "sh", "sql", "json", "mermaid", "text"}
    assert len(blocks("python")) >= 1 and len(blocks("toml")) >= 1 and len(blocks("sh")) >= 2


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_every_configuration_can_be_read(block: Block) -> None:
    text = block.text
    if "[service]" not in text:  # a part, shown within the whole of the README
        (whole,) = [each.text for each in blocks("toml") if each.page.name == "README.md"]
        tables = re.findall(r"^\[([^\]]+)\]", text, re.MULTILINE)
        assert tables, f"{block} names no table"
        text = _without(whole, tables) + text
    config = parse(text, file=str(block))
    assert config.consumers


def _without(text: str, tables: list[str]) -> str:
    parts = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    return "".join(part for part in parts if not any(part.startswith(f"[{name}]") for name in tables))


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_every_command_exists_with_its_options(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\|", line):
            words = shlex.split(part, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words:
                _check_command(str(block), words)


def _check_command(where: str, words: list[str]) -> None:
    name, *arguments = words
    if name == "inbox-fleet":
        command: click.Command = main
        while isinstance(command, click.Group):
            assert arguments and arguments[0] in command.commands, f"{where}: {words} is no command"
            command = command.commands[arguments.pop(0)]
        given = [word.split("=")[0] for word in arguments if word.startswith("-")]
        unknown = set(given) - {option for parameter in command.params for option in parameter.opts}
        assert not unknown, f"{where}: {words} has no {unknown}"
    elif name.startswith("scripts/"):
        script = ROOT / name
        assert os.access(script, os.X_OK), f"{where}: {name} cannot be executed"
        source = "".join(path.read_text("utf-8") for path in (script, script.with_suffix(".py")) if path.is_file())
        for option in arguments:
            assert option.split("=")[0] in source, f"{where}: {name} does not know {option}"
    else:
        assert name in {"curl", "rabbitmqctl"}, f"{where}: {name} is no command that these pages explain"
        if name == "rabbitmqctl":
            assert set(words) & {"list_queues", "list_policies", "set_policy", "clear_policy"}, f"{where}: {words}"


def test_a_command_or_option_that_does_not_exist_would_be_found() -> None:
    for words in (["inbox-fleet", "fly"], ["inbox-fleet", "migrate", "--back"], ["scripts/demo", "--fast"], ["rm"]):
        with pytest.raises(AssertionError):
            _check_command("here", words)


def test_the_first_screen_of_the_readme_leads_to_two_commands() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", first, re.DOTALL)
    assert commands.split() == ["scripts/demo", "scripts/test"]


TABLES: dict[str, type[Settings]] = {
    "[service]": settings.ServiceSettings,
    "[database]": settings.DatabaseSettings,
    "[database.housekeeping]": settings.HousekeepingSettings,
    "[broker]": settings.BrokerSettings,
    "[pools.NAME]": settings.PoolSettings,
    "[consumers.NAME]": settings.ConsumerSettings,
    "[[consumers.NAME.bindings]]": settings.Binding,
    '[consumers.NAME.types."TYPE"]': settings.TypeSettings,
    "[breaker]": settings.BreakerSettings,
    "[drain]": settings.DrainSettings,
    "[http]": settings.HttpSettings,
    "[log]": settings.LogSettings,
    "[receipts]": settings.ReceiptSettings,
    "[outbox]": settings.OutboxSettings,
    "[retention]": settings.RetentionSettings,
    "[sweep]": settings.SweepSettings,
    "[members]": settings.MemberSettings,
}
TABLES_INSIDE = {"[database.housekeeping]"}
NAMED_BY_THEIR_TABLE = (settings.PoolSettings, settings.ConsumerSettings)
WORKED_OUT = {
    (settings.ConsumerSettings, "pool"): "the consumer's name",
    (settings.ConsumerSettings, "key_name"): "the consumer's name",
    (settings.ConsumerSettings, "look_ahead"): "a quarter of the lanes, at least 2",
    (settings.SweepSettings, "slack_s"): ("the longest step + the longest handler timeout + 180 s, for each consumer"),
    (settings.SweepSettings, "at_latest_s"): "a day, or `slack` if that is longer",
}


def test_every_table_of_the_configuration_is_explained() -> None:
    explained = set(_sections())
    assert TABLES.keys() <= explained
    of_the_file = {field.name for field in msgspec.structs.fields(FleetConfig)} - {"file"}
    assert {name.strip("[]").split(".")[0] for name in TABLES} == of_the_file
    known = set(TABLES.values())
    structs = {each for each in vars(settings).values() if isinstance(each, type) and issubclass(each, Settings)}
    assert structs - {Settings} == known


@pytest.mark.parametrize("name", TABLES)
def test_every_key_stands_there_with_its_default(name: str) -> None:
    struct, inside = TABLES[name], {each.split(".")[-1].rstrip("]") for each in TABLES_INSIDE}
    expected = {
        field.encode_name: _default(struct, field)
        for field in msgspec.structs.fields(struct)
        if field.encode_name not in inside and not (field.name == "name" and struct in NAMED_BY_THEIR_TABLE)
    }
    rows = [cells(line) for line in _sections()[name].splitlines() if line.startswith("| `")]
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == expected
    assert all(len(row) == 3 and row[2] for row in rows)


def _sections() -> dict[str, str]:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    return dict(zip(titles, re.split(r"^## .+$", text, flags=re.MULTILINE)[1:], strict=True))


def _default(struct: type[Settings], field: msgspec.structs.FieldInfo) -> str:
    if (struct, field.name) in WORKED_OUT:
        return WORKED_OUT[struct, field.name]
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return _written(value)


def _written(value: object) -> str:
    match value:
        case None | () | MappingProxyType():
            return "none"
        case bool():
            return str(value).lower()
        case Seconds():
            return f'"{written(value)}"'
        case Size():
            return f'"{size_text(value)}"'
        case tuple():
            return f"[{', '.join(_written(each) for each in value)}]"
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def test_the_exit_codes_are_those_of_the_commands() -> None:
    assert table("operations.md", "exit code") == [[str(code.value), code.meaning] for code in Exit]


def test_the_metrics_are_those_that_are_served() -> None:
    metrics = [metric for metric in vars(names).values() if isinstance(metric, names.Metric)]
    said = [[metric.name, metric.unit.strip("{}") or "–", metric.description] for metric in metrics]
    assert table("operations.md", "metric") == said


NAMED_BY_STATE = {"subscription.waiting", "subscription.queue_missing", "subscription.topology_mismatch"}
"""The one place that makes an event's name puts a state into it."""


def test_the_log_events_are_those_of_the_code() -> None:
    assert sorted(row[0] for row in table("operations.md", "event", "says")) == sorted(_events() | NAMED_BY_STATE)


def _events() -> set[str]:
    found = set()
    for package in ("consumers", "inbox", "pools"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    if node.func.attr not in {"debug", "info", "warning", "error", "exception", "log", "_warn"}:
                        continue
                    words = [each.value for each in node.args if isinstance(each, ast.Constant)]
                    found |= {word for word in words if re.fullmatch(r"[a-z_]+\.[a-z_]+", str(word))}
    return found
