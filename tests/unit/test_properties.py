"""Property lists: found where they stand, changed by whole entries, everything else byte for byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from consumers.errors import MalformedProperties
from consumers.properties import PERSISTENT, SHORT_STRINGS, PropertyList
from tests.support import property_lists as wire
from tests.support.property_lists import TRUE, array, entry, listing, long, nested, table, text

FULL = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "delivery_mode": 1,
    "priority": 9,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "order.placed",
    "user_id": "u",
    "app_id": "a",
    "cluster_id": "x",
}


@given(wire.lists())
@settings(deadline=None, max_examples=300)
def test_a_list_without_edits_is_itself(raw: bytes) -> None:
    assert PropertyList(raw).edit().encoded() == raw


@given(wire.lists())
@settings(deadline=None, max_examples=200)
def test_edits_that_change_nothing_leave_the_list_itself(raw: bytes) -> None:
    edit = PropertyList(raw).edit().drop_headers(lambda _: False).add_headers(())
    for name in SHORT_STRINGS:
        value = PropertyList(raw).text(name)
        if value is None:
            edit.drop(name)
        else:
            edit.set_text(name, value)
    assert edit.encoded() == raw


@given(wire.lists(), st.sets(st.sampled_from(SHORT_STRINGS)), st.binary(max_size=255), st.integers(0, 3))
@settings(deadline=None, max_examples=300)
def test_an_edit_leaves_everything_else_byte_identical(
    raw: bytes, dropped: set[str], message_id: bytes, every: int
) -> None:
    before = PropertyList(raw)
    unwanted = {key for place, (key, *_) in enumerate(before.entries) if every and place % every == 0}
    edit = before.edit().drop(*dropped - {"message_id"}).set_text("message_id", message_id)  # type: ignore[arg-type]
    after = PropertyList(
        edit.set_octet("delivery_mode", 2).drop_headers(unwanted.__contains__).add_headers([(b"own", TRUE)]).encoded()
    )
    kept = [before.raw[start:end] for key, start, _, end in before.entries if key not in unwanted]
    assert [after.raw[start:end] for _, start, _, end in after.entries] == [*kept, entry((b"own", TRUE))]
    expected = {name: value for name, value in before.property_bytes().items() if name not in dropped}
    expected["message_id"] = bytes((len(message_id),)) + message_id
    expected["delivery_mode"] = b"\x02"
    assert after.property_bytes() == expected
    assert before.raw == raw


@given(wire.lists())
@settings(deadline=None)
def test_every_list_can_be_read_whole(raw: bytes) -> None:
    properties = PropertyList(raw)
    properties.headers()
    for name in SHORT_STRINGS:
        properties.text(name)
    assert repr(properties)


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=500)
def test_any_bytes_are_a_list_or_refused_by_name(raw: bytes) -> None:
    try:
        properties = PropertyList(raw)
    except MalformedProperties as error:
        assert 0 <= error.at <= len(raw)
        assert error.problem in str(error)
    else:
        assert properties.edit().encoded() == raw
        properties.headers()


@given(wire.lists(), st.data())
@settings(deadline=None, max_examples=200)
def test_a_list_that_was_cut_is_refused(raw: bytes, data: st.DataObject) -> None:
    with pytest.raises(MalformedProperties):
        PropertyList(raw[: data.draw(st.integers(0, len(raw) - 1))])


def test_every_property_is_found() -> None:
    properties = PropertyList(listing([(b"k", text("v"))], **FULL))
    for name in SHORT_STRINGS:
        assert properties.text(name) == str(FULL[name]).encode()
    assert (properties.octet("delivery_mode"), properties.octet("priority")) == (1, 9)
    assert properties.timestamp == 1_700_000_000
    assert properties.headers() == {"k": "v"}
    assert "app_id" in properties


def test_an_absent_property_is_none() -> None:
    properties = PropertyList(b"\x00\x00")
    assert [properties.text(name) for name in SHORT_STRINGS] == [None] * len(SHORT_STRINGS)
    assert (properties.octet("priority"), properties.timestamp, properties.find(b"k")) == (None, None, None)
    assert properties.headers() == {}
    assert "app_id" not in properties


def test_what_the_client_writes_is_read_and_what_we_write_the_client_reads() -> None:
    written = commands.Basic.Properties(
        content_type="application/json", headers={"k": "v", "n": 5}, delivery_mode=2, message_id="m", app_id="a"
    ).marshal()
    properties = PropertyList(written)
    assert (properties.text("message_id"), properties.headers()) == (b"m", {"k": "v", "n": 5})
    edited = properties.edit().set_text("message_id", b"other").set_header(b"k", text("w")).encoded()
    read = commands.Basic.Properties()
    read.unmarshal(struct.unpack(">H", edited[:2])[0], edited[2:])
    assert (read.message_id, read.headers, read.app_id) == ("other", {"k": "w", "n": 5}, "a")


def test_bytes_behind_the_last_value_are_refused() -> None:
    with pytest.raises(MalformedProperties, match="2 bytes follow"):
        PropertyList(listing(message_id="m") + b"zz")


@pytest.mark.parametrize("raw", [b"", b"\x80"])
def test_a_list_without_flags_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedProperties, match="no flags"):
        PropertyList(raw)


def test_an_unknown_field_type_is_refused_by_name() -> None:
    with pytest.raises(MalformedProperties, match=r"field type b'Z' is unknown"):
        PropertyList(listing([(b"k", b"Z")]))


def test_a_table_longer_than_the_list_is_refused() -> None:
    with pytest.raises(MalformedProperties, match="headers is longer"):
        PropertyList(b"\x20\x00" + struct.pack(">I", 1 << 31))


def test_depth_costs_nothing() -> None:
    raw = listing([(b"deep", nested(20_000)), (b"deeper", nested(20_000, b"F"))], message_id="m")
    properties = PropertyList(raw)
    assert properties.edit().drop_headers(lambda key: key == b"deep").encoded() == listing(
        [(b"deeper", nested(20_000, b"F"))], message_id="m"
    )
    assert properties.headers().keys() == {"deep", "deeper"}


def test_the_flags_that_mean_nothing_are_kept_until_something_is_changed() -> None:
    # RabbitMQ ignores the two lowest bits. The lowest announces a second word of flags to clients that believe it.
    raw = b"\x00\x83" + b"\x01m"
    properties = PropertyList(raw)
    assert properties.text("message_id") == b"m"
    assert properties.edit().encoded() == raw
    assert properties.edit().set_text("message_id", b"n").encoded() == b"\x00\x80\x01n"


def test_of_duplicate_headers_the_first_is_found_and_all_are_kept() -> None:
    raw = listing([(b"k", text("1")), (b"K", text("2")), (b"k", text("3"))])
    properties = PropertyList(raw)
    found = properties.find(b"k")
    assert found is not None
    assert (properties.value(found), properties.value_bytes(found)) == ("1", text("1"))
    assert properties.find(b"missing") is None
    assert properties.edit().set_text("app_id", b"a").encoded() == listing(
        [(b"k", text("1")), (b"K", text("2")), (b"k", text("3"))], app_id="a"
    )


def test_a_header_is_replaced_where_it_stands_and_its_duplicates_go() -> None:
    raw = listing([(b"a", long(1)), (b"k", text("1")), (b"b", long(2)), (b"k", text("3"))])
    assert PropertyList(raw).edit().set_header(b"k", TRUE).encoded() == listing(
        [(b"a", long(1)), (b"k", TRUE), (b"b", long(2))]
    )
    assert PropertyList(listing()).edit().set_header(b"k", TRUE).encoded() == listing([(b"k", TRUE)])


def test_a_table_that_loses_its_last_header_stays_an_empty_table() -> None:
    assert PropertyList(listing([(b"k", TRUE)])).edit().drop_headers(lambda _: True).encoded() == listing([])
    assert PropertyList(listing([])).edit().encoded() == listing([])


def test_properties_are_dropped_and_set() -> None:
    edited = PropertyList(listing(**FULL)).edit().drop("expiration", "user_id", "timestamp", "priority")
    expected = {name: value for name, value in FULL.items() if name not in ("expiration", "user_id", "timestamp")}
    del expected["priority"]
    assert edited.set_octet("delivery_mode", PERSISTENT).set_text("message_id", b"\xff\x00").encoded() == listing(
        **{**expected, "delivery_mode": 2, "message_id": b"\xff\x00"}
    )


def test_what_does_not_fit_is_refused() -> None:
    edit = PropertyList(listing()).edit()
    with pytest.raises(ValueError, match="256"):
        edit.set_text("message_id", b"m" * 256)
    with pytest.raises(ValueError, match="256"):
        edit.add_headers([(b"k" * 256, TRUE)])
    with pytest.raises(ValueError, match="256"):
        edit.set_octet("delivery_mode", 256)


def test_odd_values_survive_an_edit_that_a_library_would_change() -> None:
    odd = [
        (b"double", b"d" + struct.pack(">d", 0.1)),
        (b"huge", b"d" + struct.pack(">d", 1e300)),
        (b"bytes", text(b"\xff\xfe")),
        (b"array", b"x\x00\x00\x00\x02\xff\x00"),
        (b"millis", wire.moment(1_700_000_000_123)),
        (b"n" * 200, b"L" + b"\xff" * 8),
        (b"true", b"t\x07"),
        (b"inner", table((b"k", array(b"V", b"f\x00\x00\x00\x00")))),
    ]
    edited = PropertyList(listing(odd, message_id="m")).edit().set_octet("delivery_mode", 2).encoded()
    assert edited == listing(odd, message_id="m", delivery_mode=2)
