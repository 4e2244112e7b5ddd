"""Field values: where each ends, what each means, and that reading one never fails."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given, settings
from pamqp import decode

from consumers.errors import MalformedProperties
from consumers.fields import MAX_DEPTH, long_string, moment, table_entries, table_entry, value_end, value_of
from tests.support import property_lists as wire
from tests.support.property_lists import array, binary, nested, table, text


def read(value: bytes) -> Any:
    assert value_end(value, 0) == len(value)
    return value_of(value, 0, len(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"t\x00", False),
        (b"t\x07", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65_534),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 4_294_967_295),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f" + struct.pack(">f", 0.5), 0.5),
        (b"d" + struct.pack(">d", 0.1), 0.1),
        (b"D\x02\x00\x00\x30\x39", Decimal("123.45")),
        (b"D\x00\xff\xff\xff\xff", Decimal(-1)),
        (text("naïve\x00"), "naïve\x00"),
        (text(b"\xff\x00"), b"\xff\x00"),
        (binary(b"text"), b"text"),
        (wire.moment(1_700_000_000), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (wire.moment(1_700_000_000_000_000), 1_700_000_000_000_000),
        (wire.moment(-1), (1 << 64) - 1),
        (b"V", None),
        (array(), []),
        (array(b"t\x01", text("a"), array(b"V")), [True, "a", [None]]),
        (table((b"a", b"b\x05"), (b"b", table((b"c", b"V")))), {"a": 5, "b": {"c": None}}),
        (table((b"k\xff", b"V")), {"k\udcff": None}),
    ],
)
def test_each_type_is_read_as_rabbitmq_means_it(value: bytes, expected: Any) -> None:
    assert read(value) == expected
    assert type(read(value)) is type(expected)


def test_a_double_keeps_every_bit() -> None:
    assert read(b"d" + struct.pack(">d", 1e300)) == 1e300
    assert math.isnan(read(b"d" + struct.pack(">d", math.nan)))
    assert read(b"f" + struct.pack(">f", math.inf)) == math.inf


def test_a_decimal_does_not_depend_on_whose_context_it_is_read_in() -> None:
    with localcontext() as context:
        context.prec = 2
        assert str(read(b"D\x02\x00\x00\x30\x39")) == "123.45"
    assert read(b"D\xff\x00\x00\x00\x01") == Decimal("1e-255")


def test_the_client_agrees_about_every_value_that_both_can_read() -> None:
    values = [
        b"t\x01", b"b\x80", b"B\x80", b"s\x80\x00", b"u\x80\x00", b"I\x80\x00\x00\x00", b"i\x80\x00\x00\x00",
        b"l\x80" + b"\x00" * 7, b"L\x80" + b"\x00" * 7, b"f" + struct.pack(">f", 1.5), b"d" + struct.pack(">d", 1.5),
        b"D\x02\x00\x00\x00\x05", b"D\x02\xff\xff\xff\xff", text("a"), text(b"\xff"), wire.moment(5), b"V",
        array(b"V", text("x")), table((b"k", array(text("x"))))
    ]  # fmt: skip
    for value in values:
        assert decode.embedded_value(value) == (len(value), read(value)), value


@pytest.mark.parametrize("kind", [b"A", b"F"])
def test_depth_is_bounded_and_what_lies_below_is_bytes(kind: bytes) -> None:
    value = read(nested(MAX_DEPTH + 3, kind))
    for _ in range(MAX_DEPTH):
        value = value[0] if kind == b"A" else value["k"]
    assert value == nested(MAX_DEPTH + 3, kind)[-len(value) :]
    assert read(nested(10_000, kind))


@pytest.mark.parametrize(
    "inside",
    [b"\x01", b"\x01kZ", b"\x01kS\x00\x00", b"\x01kS\x00\x00\x00\x09a", b"\xffk", b"\x01kt", b"\x01kA\xff\xff\xff\xff"],
)
def test_a_broken_inner_table_is_its_bytes(inside: bytes) -> None:
    assert read(b"F" + struct.pack(">I", len(inside)) + inside) == inside


@pytest.mark.parametrize("inside", [b"Z", b"t", b"S\x00", b"S\x00\x00\x00\x09a", b"VVl\x00"])
def test_a_broken_inner_array_is_its_bytes(inside: bytes) -> None:
    assert read(b"A" + struct.pack(">I", len(inside)) + inside) == inside


def test_an_inner_value_cannot_reach_beyond_what_holds_it() -> None:
    stretched = b"A" + struct.pack(">I", 6) + b"S\x00\x00\x00\x03a"
    assert value_of(stretched + b"bcdef", 0, len(stretched)) == b"S\x00\x00\x00\x03a"
    stretched = b"F" + struct.pack(">I", 8) + b"\x01kS\x00\x00\x00\x03a"
    assert value_of(stretched + b"bcdef", 0, len(stretched)) == b"\x01kS\x00\x00\x00\x03a"


@pytest.mark.parametrize("value", [b"", b"Z", b"\x00", b"t", b"l\x00", b"S\x00\x00\x00", b"S\x00\x00\x00\x01"])
def test_a_value_without_an_end_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedProperties) as caught:
        value_end(value, 0)
    assert caught.value.at == 0
    assert "byte 0" in str(caught.value)


def test_a_table_names_the_byte_at_which_it_breaks() -> None:
    good = wire.entry((b"a", b"t\x01"))
    with pytest.raises(MalformedProperties) as caught:
        table_entries(good + b"\x01bZ", 0, len(good) + 3)
    assert caught.value.at == len(good) + 2
    assert "b'Z'" in caught.value.problem


@given(wire.values)
@settings(deadline=None)
def test_every_value_can_be_read_and_ends_where_it_ends(value: bytes) -> None:
    assert value_end(value + b"more", 0) == len(value)
    read(value)


@given(wire.headers)
@settings(deadline=None)
def test_a_table_is_walked_entry_by_entry(headers: list[wire.Header]) -> None:
    raw = wire.entries(headers)
    found = table_entries(raw, 0, len(raw))
    assert [(key, raw[value_at:end]) for key, _, value_at, end in found] == headers
    assert b"".join(raw[start:end] for _, start, _, end in found) == raw


def test_values_and_entries_are_written_as_senders_write_them() -> None:
    assert long_string(b"ab\xff") == text(b"ab\xff")
    assert table_entry(b"key", b"t\x01") == wire.entry((b"key", b"t\x01"))
    with pytest.raises(ValueError, match="256"):
        table_entry(b"k" * 256, b"V")


def test_a_moment_is_none_where_no_datetime_reaches() -> None:
    assert moment(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert moment(253_402_300_799) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert moment(253_402_300_800) is None
    assert moment(-1) is None
