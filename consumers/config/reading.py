"""From a TOML file to `FleetConfig`: every value checked where it stands, the first mistake named by its full path.

The structs in `settings` are the grammar. Tables are walked here rather than handed to the decoder whole, because a
message must name `consumers.invoices.lanes` and its value, and the decoder does not know names of tables. A value
under an unknown key is never shown: it may be anything.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from consumers.config.fleet import FleetConfig
from consumers.config.quantities import NAME, Name, Seconds, allowed
from consumers.config.rules import check
from consumers.config.settings import Settings
from consumers.config.sizes import Size
from consumers.errors import ConfigError
from consumers.secrets import shown
from inbox.redaction import redacted

S = TypeVar("S", bound=Settings)
Need: TypeAlias = Literal["database", "broker"]

_URL_KEYS = frozenset({"url", "url_env", "url_file"})
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def load(
    path: str | Path, *, needs: tuple[Need, ...] = ("database", "broker"), environ: Mapping[str, str] = os.environ
) -> FleetConfig:
    """Read and check a configuration file.

    :param needs: which URLs the caller is going to use; a missing one is refused now rather than when it is wanted.
    :raises ConfigError: the first mistake, with file, key, value and what is allowed.
    """
    file = str(path)
    config = parse(_text(file), file=file)
    if "database" in needs:
        config.database_url(environ)
    if "broker" in needs:
        config.broker_url(environ)
    return config


def parse(text: str, *, file: str) -> FleetConfig:
    """Check a configuration given as text.

    :param file: named in messages.
    :raises ConfigError: the first mistake.
    """
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            file=file, key="", value=None, problem=f"this is not TOML: {error}", allowed="a TOML 1.0 file"
        ) from None
    config = _Reader(file).table(FleetConfig, tables, "", {"file": file})
    check(config)
    return config


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text"
    raise ConfigError(file=file, key="", value=None, problem=problem, allowed="a readable TOML file; see --config")


class _Reader:
    """Walks the tables of one file along the structs."""

    def __init__(self, file: str) -> None:
        self._file = file

    def table(self, kind: type[S], table: object, path: str, given: Mapping[str, str]) -> S:
        """Return the struct for one table.

        :param given: fields that are known from where the table stands, and so are no keys of it.
        """
        if not isinstance(table, dict):
            raise self._refused(path, table, "it is not a table", f"a table, [{path}]")
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind) if field.name not in given}
        for key in table:
            if key not in fields:
                raise self._unknown(path, key, fields)
        values: dict[str, Any] = dict(given)
        for key, field in fields.items():
            where = dotted(path, key)
            if key in table:
                values[field.name] = self._value(field.type, table[key], where)
            elif field.required:
                raise self._missing(path, key, field)
        return kind(**values)

    def _value(self, kind: Any, value: object, path: str) -> Any:
        origin = get_origin(kind)
        if isinstance(kind, type) and issubclass(kind, Settings):
            return self.table(kind, value, path, {})
        if origin is Mapping:
            return self._mapping(get_args(kind)[1], value, path)
        if origin is tuple:
            if not isinstance(value, list):
                raise self._refused(path, value, "it is not a list", allowed(kind))
            return tuple(self._value(get_args(kind)[0], item, f"{path}[{at}]") for at, item in enumerate(value))
        try:
            return msgspec.convert(value, kind, dec_hook=_read_quantity)
        except msgspec.ValidationError as error:
            quantity = any(_is_quantity(part) for part in (kind, *get_args(kind)))
            problem = str(error) if quantity else f"this {_type_name(value)} cannot stand here"
            if isinstance(value, dict):
                problem += "; a name with dots in it is one key only between quotes"
            raise self._refused(path, value, problem, allowed(kind)) from None

    def _mapping(self, kind: Any, value: object, path: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._refused(path, value, "it is not a table", f"a table, [{path}]")
        named = isinstance(kind, type) and issubclass(kind, Settings) and "name" in kind.__struct_fields__
        items = {}
        for name, item in value.items():
            where = dotted(path, name)
            if not named:
                items[name] = self._value(kind, item, where)
                continue
            if not re.match(NAME, name):
                problem = f"{name!r} is not a name"
                raise ConfigError(file=self._file, key=path, value=None, problem=problem, allowed=allowed(Name))
            items[name] = self.table(kind, item, where, {"name": name})
        return MappingProxyType(items)

    def _refused(self, path: str, value: object, problem: str, may_be: str) -> ConfigError:
        hidden = path.rpartition(".")[2] in _URL_KEYS
        text = (redacted(value) if hidden else shown(value)) if isinstance(value, str) else shown(value)
        return ConfigError(file=self._file, key=path, value=text, problem=problem, allowed=may_be)

    def _unknown(self, path: str, key: str, fields: Mapping[str, FieldInfo]) -> ConfigError:
        close = difflib.get_close_matches(key, fields, n=1, cutoff=0.6)
        problem = f'unknown key; did you mean "{close[0]}"?' if close else "unknown key"
        return ConfigError(
            file=self._file, key=dotted(path, key), value=None, problem=problem, allowed=", ".join(sorted(fields))
        )

    def _missing(self, path: str, key: str, field: FieldInfo) -> ConfigError:
        is_table = isinstance(field.type, type) and issubclass(field.type, Settings)
        problem = f"the table [{dotted(path, key)}] is missing" if is_table else "this key is required"
        return ConfigError(
            file=self._file, key=dotted(path, key), value=None, problem=problem, allowed=allowed(field.type)
        )


def dotted(path: str, key: str) -> str:
    """Return the TOML path of a key inside a table, quoted where TOML quotes it."""
    part = key if _BARE_KEY.fullmatch(key) else '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{path}.{part}" if path else part


def _type_name(value: object) -> str:
    names = {str: "text", bool: "truth value", int: "number", float: "number", list: "list", dict: "table"}
    return names.get(type(value), "date or time")


def _is_quantity(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, (Seconds, Size))


def _read_quantity(kind: type, written: object) -> object:
    if issubclass(kind, (Seconds, Size)):
        return kind.read(written)
    raise NotImplementedError
