"""Configuration files for fleet processes under test: the product's own defaults, with waits short enough for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_QUICK: dict[str, Any] = {
    "service": {"name": "tests", "replicas": 4},
    "http": {"host": "127.0.0.1", "port": 0},
    "breaker": {"first_wait": "100ms", "longest_wait": "1s", "hold": "5s"},
    "drain": {"cancel_timeout": "2s", "deadline": "15s", "settle_timeout": "2s", "close_timeout": "2s"},
    "members": {"heartbeat": "250ms", "expiry": "2s"},
}
_QUICK_CONSUMER: dict[str, Any] = {
    "lanes": 4,
    "pacing": ["0s", "1s"],
    "contention_step": "1s",
    "handler_timeout": "10s",
}


def write_config(
    directory: Path,
    *,
    consumers: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write `fleet.toml` into a folder and return its path.

    A pool is added for each consumer that names none of `tables`.

    Args:
        directory: Where to write it.
        consumers: For each consumer its table; `queue` and `handler` are needed, the rest has quick defaults.
        tables: Other tables, merged over the quick defaults.
    """
    document: dict[str, Any] = {name: dict(table) for name, table in _QUICK.items()}
    for name, table in (tables or {}).items():
        document.setdefault(name, {}).update(table)
    document["consumers"] = {name: {**_QUICK_CONSUMER, **table} for name, table in consumers.items()}
    pools = document.setdefault("pools", {})
    for name, table in document["consumers"].items():
        pools.setdefault(table.get("pool", name), {})
    path = directory / "fleet.toml"
    path.write_text("\n".join(_lines((), document)) + "\n", encoding="utf-8")
    return path


def _lines(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{'.'.join(_string(part) for part in path)}]"] if path else []
    lines += [f"{_string(key)} = {_value(value)}" for key, value in values.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines((*path, key), value)
    return lines


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case Mapping():
            return f"{{{', '.join(f'{_string(key)} = {_value(item)}' for key, item in value.items())}}}"
        case _:
            raise TypeError(f"a configuration file cannot hold {value!r}")


def _string(text: str) -> str:
    escaped = "".join(f"\\u{ord(c):04x}" if c in '"\\' or ord(c) < 32 else c for c in text)
    return f'"{escaped}"'
