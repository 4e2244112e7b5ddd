"""The property list of a message as bytes: read where it stands, changed by whole entries, never decoded and encoded.

A list that went through an AMQP library is another list: doubles become floats, bytes become refusals, long names are
cut. So a copy of a message is made here, and what is not changed in it is byte for byte what the sender wrote.

A list is read as RabbitMQ reads it: one word of flags, whose two lowest bits mean nothing, then the values, then the
end. What RabbitMQ would not have accepted is `MalformedProperties`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Literal, TypeAlias

from consumers.errors import MalformedProperties
from consumers.fields import Entry, length_of, table_entries, table_entry, value_of

ShortString: TypeAlias = Literal[
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]
Octet: TypeAlias = Literal["delivery_mode", "priority"]
Property: TypeAlias = ShortString | Octet | Literal["headers", "timestamp"]

PERSISTENT: Final = 2

_SHORT, _OCTET, _TIME, _TABLE = range(4)

# In the order of the list, from the highest flag down.
_PROPERTIES: Final[tuple[tuple[Property, int], ...]] = (
    ("content_type", _SHORT),
    ("content_encoding", _SHORT),
    ("headers", _TABLE),
    ("delivery_mode", _OCTET),
    ("priority", _OCTET),
    ("correlation_id", _SHORT),
    ("reply_to", _SHORT),
    ("expiration", _SHORT),
    ("message_id", _SHORT),
    ("timestamp", _TIME),
    ("type", _SHORT),
    ("user_id", _SHORT),
    ("app_id", _SHORT),
    ("cluster_id", _SHORT),
)
SHORT_STRINGS: Final[tuple[ShortString, ...]] = tuple(
    name  # type: ignore[misc]
    for name, kind in _PROPERTIES
    if kind == _SHORT
)
_FLAGS: Final[dict[Property, int]] = {name: 0x8000 >> place for place, (name, _) in enumerate(_PROPERTIES)}

_word_of = Struct(">H").unpack_from
_pack_word = Struct(">H").pack
_unsigned_long_of = Struct(">Q").unpack_from
_pack_length = Struct(">I").pack


# Senders use a handful of combinations; walking only what is there is half of the cost of reading a list.
@lru_cache(maxsize=512)
def _present(flags: int) -> tuple[tuple[Property, int], ...]:
    return tuple((name, kind) for name, kind in _PROPERTIES if flags & _FLAGS[name])


class PropertyList:
    """A property list, found but not decoded. It is a value: changing it is making a `PropertyEdit`.

    :param raw: as received: flags, then values.
    :raises MalformedProperties: no broker would have let this list pass.
    """

    __slots__ = ("_spans", "entries", "raw")

    raw: bytes
    entries: list[Entry]
    """The header table's entries in their order, duplicates among them; read with `value` and `value_bytes`."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.entries = []
        self._spans: dict[Property, tuple[int, int]] = {}
        if len(raw) < 2:
            raise MalformedProperties(problem="there are no flags", at=0)
        at = 2
        try:
            for name, kind in _present(_word_of(raw)[0] & 0xFFFC):
                if kind == _SHORT:
                    end = at + 1 + raw[at]
                elif kind == _OCTET:
                    end = at + 1
                elif kind == _TIME:
                    end = at + 8
                else:
                    end = at + 4 + (length_of(raw, at)[0] if at + 4 <= len(raw) else 0)
                    if end <= len(raw):
                        self.entries = table_entries(raw, at + 4, end)
                if end > len(raw):
                    raise MalformedProperties(problem=f"{name} is longer than what is left", at=at)
                self._spans[name] = (at, end)
                at = end
        except IndexError:
            raise MalformedProperties(problem="the list ends before its values do", at=at) from None
        if at != len(raw):
            raise MalformedProperties(problem=f"{len(raw) - at} bytes follow the last value", at=at)

    def __contains__(self, name: object) -> bool:
        return name in self._spans

    def __repr__(self) -> str:
        return f"PropertyList({', '.join(self._spans)}: {len(self.raw)} bytes, {len(self.entries)} headers)"

    def text(self, name: ShortString) -> bytes | None:
        """Return a short string's bytes, whatever they are; None if the property is absent."""
        span = self._spans.get(name)
        return None if span is None else self.raw[span[0] + 1 : span[1]]

    def octet(self, name: Octet) -> int | None:
        """Return a one-byte number; None if the property is absent."""
        span = self._spans.get(name)
        return None if span is None else self.raw[span[0]]

    @property
    def timestamp(self) -> int | None:
        """The `timestamp` property as the number it is, unsigned; None if it is absent."""
        span = self._spans.get("timestamp")
        if span is None:
            return None
        value: int = _unsigned_long_of(self.raw, span[0])[0]
        return value

    def value(self, entry: Entry) -> Any:
        """Return the Python value of a header, or its bytes if it has none."""
        return value_of(self.raw, entry[2], entry[3])

    def value_bytes(self, entry: Entry) -> bytes:
        """Return the value of a header as it stands, its type byte in front."""
        return self.raw[entry[2] : entry[3]]

    def find(self, key: bytes) -> Entry | None:
        """Return the first header of exactly this name, as the broker would."""
        for entry in self.entries:
            if entry[0] == key:
                return entry
        return None

    def headers(self) -> dict[str, Any]:
        """Return the headers decoded. Names that are not UTF-8 keep their bytes as surrogate escapes."""
        return {entry[0].decode("utf-8", "surrogateescape"): self.value(entry) for entry in self.entries}

    def property_bytes(self) -> dict[Property, bytes]:
        """Return the bytes of each property but the headers, in the order of the list."""
        return {name: self.raw[at:end] for name, (at, end) in self._spans.items() if name != "headers"}

    def edit(self) -> PropertyEdit:
        """Return an edit of this list, which stays as it is."""
        return PropertyEdit(self)


class PropertyEdit:
    """Changes to a property list, by whole properties and whole headers. What is not named here stays as it was."""

    __slots__ = ("_entries", "_has_table", "_original", "_properties", "_touched")

    def __init__(self, properties: PropertyList) -> None:
        self._original = properties.raw
        self._properties = properties.property_bytes()
        self._has_table = "headers" in properties
        self._entries = [(entry[0], properties.raw[entry[1] : entry[3]]) for entry in properties.entries]
        self._touched = False

    def drop(self, *names: ShortString | Octet | Literal["timestamp"]) -> PropertyEdit:
        """Remove properties; those that are absent stay absent."""
        for name in names:
            if self._properties.pop(name, None) is not None:
                self._touched = True
        return self

    def set_text(self, name: ShortString, value: bytes) -> PropertyEdit:
        """Set a short string.

        :raises ValueError: it is longer than 255 bytes.
        """
        return self._set(name, bytes((len(value),)) + value)

    def set_octet(self, name: Octet, value: int) -> PropertyEdit:
        """Set a one-byte number."""
        return self._set(name, bytes((value,)))

    def _set(self, name: Property, value: bytes) -> PropertyEdit:
        if self._properties.get(name) != value:
            self._properties[name] = value
            self._touched = True
        return self

    def drop_headers(self, unwanted: Callable[[bytes], bool]) -> PropertyEdit:
        """Remove every header whose name is unwanted."""
        kept = [entry for entry in self._entries if not unwanted(entry[0])]
        self._touched = self._touched or len(kept) != len(self._entries)
        self._entries = kept
        return self

    def add_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> PropertyEdit:
        """Append headers.

        :param headers: names, and values with their type bytes in front.
        :raises ValueError: a name is longer than 255 bytes.
        """
        for key, value in headers:
            self._entries.append((key, table_entry(key, value)))
            self._has_table = self._touched = True
        return self

    def set_header(self, key: bytes, value: bytes) -> PropertyEdit:
        """Replace a header where it stands, duplicates of it included, or append it.

        :param value: with its type byte in front.
        :raises ValueError: the name is longer than 255 bytes.
        """
        places = [place for place, entry in enumerate(self._entries) if entry[0] == key]
        if not places:
            return self.add_headers([(key, value)])
        self._entries[places[0]] = (key, table_entry(key, value))
        for place in reversed(places[1:]):
            del self._entries[place]
        self._touched = True
        return self

    def encoded(self) -> bytes:
        """Return the list as bytes: the original ones if nothing was changed."""
        if not self._touched:
            return self._original
        # The two lowest bits are not kept: the lowest announces a second word of flags, which a client that believes
        # it would look for in the first value.
        flags = 0
        parts: list[bytes] = []
        for name, _ in _PROPERTIES:
            if name == "headers":
                if not self._has_table:
                    continue
                table = b"".join([entry for _, entry in self._entries])
                parts.append(_pack_length(len(table)) + table)
            elif name in self._properties:
                parts.append(self._properties[name])
            else:
                continue
            flags |= _FLAGS[name]
        return _pack_word(flags) + b"".join(parts)
