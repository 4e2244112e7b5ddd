"""Property lists written byte by byte, as a sender with any AMQP library might, and strategies that make them.

Nothing here uses the code that reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hypothesis import strategies as st

ORDER = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
OCTETS = ("delivery_mode", "priority")
SHORT_STRINGS = tuple(name for name in ORDER if name not in (*OCTETS, "headers", "timestamp"))

Header = tuple[bytes, bytes]
"""A header's name and its value, the type byte in front."""

TRUE = b"t\x01"


def text(value: str | bytes) -> bytes:
    """A long string."""
    raw = value.encode() if isinstance(value, str) else value
    return b"S" + struct.pack(">I", len(raw)) + raw


def binary(value: bytes) -> bytes:
    """A byte array."""
    return b"x" + struct.pack(">I", len(value)) + value


def moment(value: int) -> bytes:
    """A timestamp, which may be negative."""
    return b"T" + struct.pack(">Q", value % (1 << 64))


def long(value: int) -> bytes:
    """A 64-bit integer."""
    return b"l" + struct.pack(">q", value)


def array(*values: bytes) -> bytes:
    """An array of values."""
    inner = b"".join(values)
    return b"A" + struct.pack(">I", len(inner)) + inner


def table(*headers: Header) -> bytes:
    """A nested table."""
    inner = entries(headers)
    return b"F" + struct.pack(">I", len(inner)) + inner


def nested(depth: int, kind: bytes = b"A") -> bytes:
    """Arrays, or tables, in each other."""
    value = b"V"
    for _ in range(depth):
        value = array(value) if kind == b"A" else table((b"k", value))
    return value


def entry(header: Header) -> bytes:
    """One header as it stands in a table."""
    key, value = header
    return bytes((len(key),)) + key + value


def entries(headers: Iterable[Header]) -> bytes:
    """Headers as they stand in a table."""
    return b"".join(entry(header) for header in headers)


def listing(headers: Iterable[Header] | None = None, **properties: str | bytes | int) -> bytes:
    """A whole list. Properties that are not given are absent, and so is the table if `headers` is None."""
    flags, parts = 0, []
    for place, name in enumerate(ORDER):
        if name == "headers":
            if headers is None:
                continue
            inner = entries(headers)
            parts.append(struct.pack(">I", len(inner)) + inner)
        elif name in properties:
            value = properties.pop(name)
            if isinstance(value, int):
                parts.append(bytes((value,)) if name in OCTETS else struct.pack(">Q", value % (1 << 64)))
            else:
                raw = value.encode() if isinstance(value, str) else value
                parts.append(bytes((len(raw),)) + raw)
        else:
            continue
        flags |= 0x8000 >> place
    assert not properties, f"no such properties: {', '.join(properties)}"
    return struct.pack(">H", flags) + b"".join(parts)


_FIXED = {
    "t": 1,
    "b": 1,
    "B": 1,
    "s": 2,
    "u": 2,
    "I": 4,
    "i": 4,
    "f": 4,
    "D": 5,
    "l": 8,
    "L": 8,
    "d": 8,
    "T": 8,
    "V": 0,
}

_names = st.one_of(
    st.sampled_from(
        (
            b"x-death",
            b"x-delivery-count",
            b"x-first-death-queue",
            b"x-last-death-reason",
            b"x-tenant",
            b"CC",
            b"BCC",
            b"ce-id",
            b"ce-source",
            b"ce-type",
            b"ce-specversion",
            b"ce-time",
            b"Ce-Id",
            b"cloudEvents_id",
            b"cloudEvents:source",
            b"traceparent",
            b"inbox-exchange",
            b"inbox-routing-key",
            b"inbox-redelivered",
            b"inbox-no-id",
            b"inbox-cc",
            b"inbox-bcc",
            b"inbox-user-id",
            b"",
        )
    ),
    st.binary(max_size=20),
    st.binary(min_size=255, max_size=255),
)


@st.composite
def _scalar(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(sorted(_FIXED)))
    return kind.encode() + draw(st.binary(min_size=_FIXED[kind], max_size=_FIXED[kind]))


values: st.SearchStrategy[bytes] = st.recursive(
    st.one_of(
        _scalar(),
        st.binary(max_size=40).map(text),
        st.text(max_size=20).map(text),
        st.sampled_from(("1.0", "0.3", "urn:shop", "2026-11-30T12:00:00Z")).map(text),
        st.binary(max_size=40).map(binary),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: array(*items)),
        st.lists(st.tuples(_names, inner), max_size=4).map(lambda items: table(*items)),
        # Lengths that are right around contents that are none: a list is walked by lengths alone.
        st.binary(max_size=20).map(lambda junk: b"A" + struct.pack(">I", len(junk)) + junk),
        st.binary(max_size=20).map(lambda junk: b"F" + struct.pack(">I", len(junk)) + junk),
    ),
    max_leaves=8,
)
"""Any value that a broker lets pass, and some that it does not."""

headers: st.SearchStrategy[list[Header]] = st.lists(st.tuples(_names, values), max_size=8)

_shorts = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=20).map(str.encode),
    st.binary(min_size=255, max_size=255),
    st.sampled_from((b"application/json", b"application/cloudevents+json", b"application/cloudevents-batch+json")),
)


@st.composite
def lists(draw: st.DrawFn) -> bytes:
    """Any list that a broker lets pass, the two flags that mean nothing included."""
    properties: dict[str, bytes | int] = {}
    for name in draw(st.sets(st.sampled_from([name for name in ORDER if name != "headers"]))):
        if name in OCTETS:
            properties[name] = draw(st.integers(0, 255))
        elif name == "timestamp":
            properties[name] = draw(st.one_of(st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 42)))
        else:
            properties[name] = draw(_shorts)
    raw = listing(draw(st.one_of(st.none(), headers)), **properties)
    return raw[:1] + bytes((raw[1] | draw(st.integers(0, 3)),)) + raw[2:]
