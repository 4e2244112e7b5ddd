"""Field values of AMQP 0-9-1 tables: where each ends, and what it means in Python.

A table is walked by the lengths that it states, one level at a time, so that depth costs nothing and what is not
looked at is not decoded. Reading a value never fails: what has no Python value (text that is not UTF-8, a nesting too
deep, a broken inner table) is its bytes, and a timestamp that no datetime holds is its number.

Types and sizes are those that RabbitMQ reads (its "AMQP 0-9-1 errata"), signed where RabbitMQ takes them as signed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any, Final, TypeAlias

from consumers.errors import MalformedProperties

Entry: TypeAlias = tuple[bytes, int, int, int]
"""One entry of a table: its key, where it starts, where the type byte of its value stands, where it ends."""

MAX_DEPTH: Final = 16
"""Tables and arrays below this many others are left as bytes: a sender chooses the depth, but our stack is finite."""

TEXT: Final = ord("S")
BYTES: Final = ord("x")
BOOLEAN: Final = ord("t")
TIMESTAMP: Final = ord("T")
TABLE: Final = ord("F")
ARRAY: Final = ord("A")
LONG: Final = ord("l")
LONG_ALIAS: Final = ord("L")

_PREFIXED = -1
_UNKNOWN = -2

_FIXED = {b"tbB": 1, b"su": 2, b"Iif": 4, b"D": 5, b"lLdT": 8, b"V": 0}
_SIZES = [_UNKNOWN] * 256
for _letters, _size in _FIXED.items():
    for _letter in _letters:
        _SIZES[_letter] = _size
for _letter in b"SxFA":
    _SIZES[_letter] = _PREFIXED

length_of = Struct(">I").unpack_from
_pack_length = Struct(">I").pack

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND: Final = 253_402_300_799


def value_end(raw: bytes, at: int) -> int:
    """Return where the value ends whose type byte stands at `at`.

    :raises MalformedProperties: the type is unknown, so its length is too, or the bytes end before the value does.
    """
    try:
        size = _SIZES[raw[at]]
        if size >= 0:
            end = at + 1 + size
        elif size == _PREFIXED and at + 5 <= len(raw):
            end = at + 5 + length_of(raw, at + 1)[0]
        elif size == _PREFIXED:
            raise MalformedProperties(problem="a value ends within its length", at=at)
        else:
            raise MalformedProperties(problem=f"field type {raw[at : at + 1]!r} is unknown", at=at)
    except IndexError:
        raise MalformedProperties(problem="a value is missing", at=at) from None
    if end > len(raw):
        raise MalformedProperties(problem="a value is longer than what is left", at=at)
    return end


def table_entries(raw: bytes, at: int, end: int) -> list[Entry]:
    """Return the entries of the table whose first key stands at `at`; nested tables are one value each.

    :raises MalformedProperties: the entries do not end exactly at `end`.
    """
    entries: list[Entry] = []
    while at < end:
        value_at = at + 1 + raw[at]
        if value_at >= end:
            raise MalformedProperties(problem="a header name is longer than what is left of its table", at=at)
        size = _SIZES[raw[value_at]]
        after = value_at + 1 + size if size >= 0 else value_end(raw, value_at)
        if after > end:
            raise MalformedProperties(problem="a header is longer than what is left of its table", at=at)
        entries.append((raw[at + 1 : value_at], at, value_at, after))
        at = after
    return entries


def value_of(raw: bytes, at: int, end: int, depth: int = MAX_DEPTH) -> Any:
    """Return the Python value whose type byte stands at `at` and which ends at `end`, or its bytes if it has none."""
    reader = _READERS.get(raw[at])
    return raw[at + 1 : end] if reader is None else reader(raw, at + 1, end, depth)


def moment(seconds: int) -> datetime | None:
    """Return a POSIX time in UTC, or None if no datetime holds it."""
    return _EPOCH + timedelta(seconds=seconds) if 0 <= seconds <= _LAST_SECOND else None


def long_string(value: bytes) -> bytes:
    """Return a long string value, its type byte in front."""
    return b"S" + _pack_length(len(value)) + value


TRUE: Final = b"t\x01"


def table_entry(key: bytes, value: bytes) -> bytes:
    """Return a whole table entry.

    :param value: with its type byte in front.
    :raises ValueError: the key is longer than 255 bytes.
    """
    return bytes((len(key),)) + key + value


_Reader: TypeAlias = Callable[[bytes, int, int, int], Any]


def _number(code: str) -> _Reader:
    unpack = Struct(code).unpack_from

    def read(raw: bytes, at: int, _end: int, _depth: int) -> Any:
        return unpack(raw, at)[0]

    return read


_unsigned_long = Struct(">Q").unpack_from
_scaled = Struct(">Bi").unpack_from


def _boolean(raw: bytes, at: int, _end: int, _depth: int) -> bool:
    return raw[at] != 0


def _nothing(_raw: bytes, _at: int, _end: int, _depth: int) -> None:
    return None


def _text(raw: bytes, at: int, end: int, _depth: int) -> str | bytes:
    value = raw[at + 4 : end]
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _bytes(raw: bytes, at: int, end: int, _depth: int) -> bytes:
    return raw[at + 4 : end]


def _timestamp(raw: bytes, at: int, _end: int, _depth: int) -> datetime | int:
    seconds: int = _unsigned_long(raw, at)[0]
    return moment(seconds) or seconds


def _decimal(raw: bytes, at: int, _end: int, _depth: int) -> Decimal:
    scale, unscaled = _scaled(raw, at)
    # From its parts, because arithmetic obeys the precision and the traps of whoever's context this runs in.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _table(raw: bytes, at: int, end: int, depth: int) -> dict[str, Any] | bytes:
    if depth > 0:
        try:
            return {
                key.decode("utf-8", "surrogateescape"): value_of(raw, value_at, after, depth - 1)
                for key, _, value_at, after in table_entries(raw, at + 4, end)
            }
        except MalformedProperties:
            pass
    return raw[at + 4 : end]


def _array(raw: bytes, at: int, end: int, depth: int) -> list[Any] | bytes:
    items: list[Any] = []
    if depth > 0:
        value_at = at + 4
        try:
            while value_at < end:
                after = value_end(raw, value_at)
                if after > end:
                    break
                items.append(value_of(raw, value_at, after, depth - 1))
                value_at = after
            else:
                return items
        except MalformedProperties:
            pass
    return raw[at + 4 : end]


_READERS: dict[int, _Reader] = {
    TEXT: _text,
    BOOLEAN: _boolean,
    TIMESTAMP: _timestamp,
    TABLE: _table,
    ARRAY: _array,
    BYTES: _bytes,
    ord("V"): _nothing,
    ord("D"): _decimal,
    ord("b"): _number(">b"),
    ord("B"): _number(">B"),
    ord("s"): _number(">h"),
    ord("u"): _number(">H"),
    ord("I"): _number(">i"),
    ord("i"): _number(">I"),
    LONG: _number(">q"),
    LONG_ALIAS: _number(">q"),
    ord("f"): _number(">f"),
    ord("d"): _number(">d"),
}
