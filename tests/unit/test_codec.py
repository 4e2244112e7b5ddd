"""From a delivery to a message: identity, what a handler gets, and malformed messages by name."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.codec import Decoded, Malformed, decode
from consumers.copies import parked_copy
from consumers.errors import MalformedProperties
from consumers.properties import PropertyList
from inbox import Attempt, message_key
from tests.support import property_lists as wire
from tests.support.property_lists import TRUE, array, listing, long, nested, table, text

QUEUE = "billing.invoices"
CALL: dict[str, Any] = {
    "consumer": "invoices",
    "queue": QUEUE,
    "body": b'{"id": 1}',
    "fault": None,
    "exchange": "shop",
    "routing_key": "order.placed",
    "redelivered": False,
}
ATTEMPT = Attempt(number=2, generation=1, claim_id=UUID(int=7))
OVERFLOW = ValueError("year 53840 is out of range")


def read(properties: bytes, **changed: Any) -> Decoded | Malformed:
    return decode(properties=properties, **{**CALL, **changed})


def good(properties: bytes, **changed: Any) -> Decoded:
    found = read(properties, **changed)
    assert isinstance(found, Decoded), found
    return found


def bad(properties: bytes, **changed: Any) -> Malformed:
    found = read(properties, **changed)
    assert isinstance(found, Malformed), found
    return found


def returned(properties: bytes, **changed: Any) -> Decoded | Malformed:
    """Read what comes back from a parking queue."""
    return read(properties, **{"exchange": "", "routing_key": QUEUE, **changed})


PLAIN = {
    "content_type": "application/json",
    "delivery_mode": 2,
    "correlation_id": "request-5",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order.placed",
    "app_id": "shop-api",
}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_plain_message_is_read_from_its_properties() -> None:
    raw = listing([(b"tenant", text("acme")), (b"n", long(5)), (b"traceparent", text(TRACE))], **PLAIN)
    found = good(raw)
    message = found.message
    assert message.key == message_key("invoices", "shop-api", "m-1")
    assert (message.consumer, message.source, message.message_id) == ("invoices", "shop-api", "m-1")
    assert (message.type, message.traceparent) == ("order.placed", TRACE)
    assert (message.exchange, message.routing_key) == ("shop", "order.placed")
    assert message.body is CALL["body"]
    assert message.properties is raw
    assert found.data is CALL["body"]
    assert found.redelivered is False


def test_an_envelope_carries_what_the_handler_is_promised() -> None:
    headers = [(b"tenant", text("acme")), (b"raw", text(b"\xff")), (b"list", array(TRUE, b"V"))]
    envelope = good(listing(headers, **PLAIN), redelivered=True).envelope(ATTEMPT)
    assert (envelope.id, envelope.type, envelope.source, envelope.consumer) == (
        "m-1", "order.placed", "shop-api", "invoices"
    )  # fmt: skip
    assert dict(envelope.headers) == {"tenant": "acme", "raw": b"\xff", "list": [True, None]}
    assert (envelope.exchange, envelope.routing_key, envelope.redelivered) == ("shop", "order.placed", True)
    assert (envelope.content_type, envelope.correlation_id) == ("application/json", "request-5")
    assert envelope.time == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert envelope.attempt is ATTEMPT
    assert envelope.decode(dict) == {"id": 1}
    assert dict(envelope.attributes) == {}


def test_headers_are_read_only_and_the_same_on_each_look() -> None:
    headers = good(listing([(b"tenant", text("acme"))], **PLAIN)).headers
    assert ("tenant" in headers, "other" in headers, len(headers)) == (True, False, 1)
    assert headers["tenant"] == "acme"
    assert headers["tenant"] is headers["tenant"]
    assert repr(headers) == "{'tenant': 'acme'}"
    with pytest.raises(TypeError):
        headers["tenant"] = "other"  # type: ignore[index]


def test_neither_body_nor_headers_stand_in_the_repr() -> None:
    found = good(listing([(b"token", text("hunter2"))], **PLAIN), body=b"hunter3")
    assert "hunter" not in repr(found)
    assert "hunter" not in repr(bad(listing([(b"token", text("hunter2"))]), body=b"hunter3"))


def test_the_source_is_app_id_else_the_exchange() -> None:
    assert good(listing(message_id="m")).message.source == "shop"
    assert good(listing(message_id="m", app_id="")).message.source == "shop"
    assert good(listing(message_id="m", app_id="api")).message.source == "api"
    assert good(listing(message_id="m"), exchange="", routing_key=QUEUE).message.source == ""


def test_a_missing_type_is_for_the_registry_to_judge() -> None:
    assert good(listing(message_id="m")).message.type == ""
    assert good(listing(message_id="m", type="")).message.type == ""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (1_700_000_000_000_000, None),
        (-1, None),
    ],
)
def test_a_timestamp_is_seconds_or_milliseconds_or_nothing(seconds: int, expected: datetime | None) -> None:
    assert good(listing(message_id="m", timestamp=seconds)).time == expected


@pytest.mark.parametrize("value", [b"x", b"00-zz-11-01", b"\xff", b""])
def test_a_broken_trace_context_is_no_reason_to_refuse(value: bytes) -> None:
    assert good(listing([(b"traceparent", text(value))], message_id="m")).message.traceparent is None


# Malformed


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (listing(), "message_id is missing"),
        (listing(message_id=""), "message_id is empty"),
        (listing(message_id=" "), "message_id is blank"),
        (listing(message_id="\t \u00a0\u2003"), "message_id is blank"),
        (listing(message_id=b"caf\xe9"), "message_id is not UTF-8"),
        (listing(message_id="a\0b"), "message_id holds NUL"),
        (listing(message_id=b"\xed\xa0\x80"), "message_id is not UTF-8"),
        (listing(message_id="m", app_id="a\0"), "app_id holds NUL"),
        (listing(message_id="m", app_id=b"\xff"), "app_id is not UTF-8"),
    ],
)
def test_a_message_without_a_usable_identity_is_kept_under_its_bytes(properties: bytes, reason: str) -> None:
    found = bad(properties)
    assert found.reason.startswith(reason)
    assert found.message.key == bad(properties).message.key
    assert found.message.key not in {
        bad(properties, body=b"other").message.key,
        bad(listing([(b"k", TRUE)])).message.key,
        message_key("invoices", "shop", ""),
    }
    assert (found.message.properties, found.message.body) == (properties, CALL["body"])
    assert (found.message.exchange, found.message.routing_key) == ("shop", "order.placed")


def test_blanks_around_an_id_are_part_of_it() -> None:
    assert good(listing(message_id=" m ")).message.message_id == " m "
    assert good(listing(message_id=" m ")).message.key != good(listing(message_id="m")).message.key


def test_a_blank_id_is_none_in_parked_copies_too() -> None:
    first = bad(listing(message_id="  "))
    copy = parked_copy(
        first.message.properties,
        queue=QUEUE,
        exchange="shop",
        routing_key="order.placed",
        redelivered=False,
        message_id="",
    )
    back = returned(copy)
    assert isinstance(back, Malformed)
    assert (back.reason, back.message.key) == ("message_id is blank", first.message.key)


def test_two_bodies_without_an_id_are_never_folded() -> None:
    keys = {bad(listing(**extra), body=body).message.key for body in (b"1", b"2") for extra in ({}, {"message_id": ""})}
    assert len(keys) == 2, "a missing and an empty id are the same absence, the bodies are not"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (listing(message_id="m", type="a\0"), "type holds NUL"),
        (listing(message_id="m", type=b"\xff"), "type is not UTF-8"),
        (listing(message_id="m", content_type=b"\xff"), "content_type is not UTF-8"),
        (listing(message_id="m", correlation_id=b"\xff"), "correlation_id is not UTF-8"),
    ],
)
def test_a_message_whose_identity_can_be_read_is_malformed_under_its_own_key(properties: bytes, reason: str) -> None:
    found = bad(properties)
    assert found.reason.startswith(reason)
    assert found.message.key == message_key("invoices", "shop", "m")
    assert (found.message.message_id, found.message.source) == ("m", "shop")


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (listing(message_id="m", timestamp=1_700_000_000_000_000), "property timestamp is out of range: 17000000000"),
        (listing(message_id="m", timestamp=-1), "property timestamp is out of range"),
        (listing([(b"t", wire.moment(-1))], message_id="m"), "header 't' is out of range"),
        (listing([(b"\xff", TRUE)], message_id="m"), "a header's name is not UTF-8: b'\\xff'"),
        (listing([(b"deep", nested(600))], message_id="m"), "header 'deep' cannot be decoded: ValueError"),
        (listing([(b"t", table((b"\xff", b"V")))], message_id="m"), "header 't' cannot be decoded: ValueError"),
        (listing([(b"a", table()), (b"b", table())], message_id="m"), "the properties cannot be decoded: ValueError"),
        (listing(message_id="m", reply_to=b"\xff"), "property reply_to is not UTF-8: b'\\xff'"),
        (listing(message_id="m", cluster_id=b"\xff"), "property cluster_id is not UTF-8"),
    ],
)
def test_what_the_client_cannot_decode_is_malformed_by_its_name(properties: bytes, reason: str) -> None:
    found = bad(properties, fault=OVERFLOW)
    assert found.reason.startswith(reason)
    assert found.message.key == message_key("invoices", "shop", "m"), (
        "its id can be read, so its copies are one message"
    )


def test_a_list_that_breaks_the_encoding_is_kept_under_its_bytes() -> None:
    broken = listing([(b"k", b"Z")], message_id="m")
    found = bad(broken, fault=OVERFLOW, redelivered=True, routing_key="k\udcff\0")
    assert "field type b'Z' is unknown" in found.reason
    assert (found.message.message_id, found.message.properties, found.redelivered) == ("", broken, True)
    assert found.message.routing_key == "k\\udcff\\x00"
    assert found.message.key != bad(broken, body=b"other").message.key


def test_names_that_are_no_text_are_spelled_out() -> None:
    found = good(listing(message_id="m"), exchange="x\udcff", routing_key="k\udcfe\0é")
    assert (found.message.exchange, found.message.routing_key) == ("x\\udcff", "k\\udcfe\\x00é")
    assert found.message.source == "x\\udcff"


def test_a_reason_is_bounded() -> None:
    many = [(f"n{place}".encode(), table()) for place in range(2)]
    assert len(bad(listing(many, message_id="m"), fault=ValueError("x" * 9_000)).reason) == 500


# Own headers


def test_own_headers_are_believed_on_a_return_only() -> None:
    own = [
        (b"inbox-exchange", text("shop")),
        (b"inbox-routing-key", text("order.placed")),
        (b"inbox-redelivered", TRUE),
        (b"tenant", text("acme")),
    ]
    back = returned(listing(own, message_id="m"))
    assert isinstance(back, Decoded)
    assert (back.message.source, back.message.exchange, back.message.routing_key) == ("shop", "shop", "order.placed")
    assert back.redelivered is True
    assert dict(back.headers) == {"tenant": "acme"}

    passed_on = good(listing(own, message_id="m"), exchange="other", routing_key="k")
    assert (passed_on.message.source, passed_on.message.exchange, passed_on.message.routing_key) == (
        "other", "other", "k"
    )  # fmt: skip
    assert passed_on.redelivered is False
    assert dict(passed_on.headers) == {"tenant": "acme"}


def test_a_returned_copy_shows_the_senders_cc_and_bcc_as_its_first_delivery_did() -> None:
    carried = [(b"inbox-cc", array(text("others"))), (b"inbox-bcc", array(text("hidden"))), (b"tenant", text("acme"))]
    back = returned(listing(carried, message_id="m"))
    assert isinstance(back, Decoded)
    assert dict(back.headers) == {"tenant": "acme", "CC": ["others"], "BCC": ["hidden"]}
    assert dict(good(listing(carried, message_id="m"), exchange="other", routing_key="k").headers) == {"tenant": "acme"}


def test_a_copy_that_was_routed_by_another_key_is_no_return() -> None:
    own = [(b"inbox-exchange", text("shop"))]
    assert good(listing(own, message_id="m"), exchange="", routing_key="other").message.source == ""


def test_an_own_header_of_a_wrong_type_means_nothing() -> None:
    back = returned(listing([(b"inbox-exchange", long(5))], message_id="m"))
    assert (back.message.source, back.message.exchange, back.message.routing_key) == ("", "", QUEUE)


def test_the_mark_and_the_flag_both_say_redelivered() -> None:
    marked = listing([(b"inbox-redelivered", TRUE)], message_id="m")
    assert returned(marked).redelivered is True
    assert returned(listing(message_id="m"), redelivered=True).redelivered is True
    assert returned(listing(message_id="m")).redelivered is False
    assert returned(listing([(b"inbox-redelivered", TRUE)], message_id="")).redelivered is True


def test_an_id_that_is_ours_identifies_nothing() -> None:
    back = returned(listing([(b"inbox-no-id", TRUE)], message_id="made-up"))
    assert isinstance(back, Malformed)
    assert (back.reason, back.message.message_id) == ("message_id is missing", "")


# One key for all deliveries


def _redelivered(raw: bytes, count: int) -> bytes:
    """What RabbitMQ makes of a list when it adds the delivery count: headers sorted, two types rewritten."""
    listed = PropertyList(raw)
    headers = [(key, listed.raw[value_at:end]) for key, _, value_at, end in listed.entries]
    edit = listed.edit().drop_headers(lambda _: True)
    rewritten = [
        (key, b"l" + value[1:] if value[:1] == b"L" else (b"t\x01" if value[:1] == b"t" and value != b"t\0" else value))
        for key, value in headers
        if key != b"x-delivery-count"
    ]
    return edit.add_headers(sorted([*rewritten, (b"x-delivery-count", long(count))], key=itemgetter(0))).encoded()


@given(wire.lists(), st.sampled_from(("shop", "", "x\udcff")), st.sampled_from(("order.placed", QUEUE)), st.booleans())
@settings(deadline=None, max_examples=300)
def test_a_message_keeps_its_key_on_every_delivery(
    raw: bytes, exchange: str, routing_key: str, redelivered: bool
) -> None:
    call = {"exchange": exchange, "routing_key": routing_key}
    first = read(raw, **call)
    again = _redelivered(raw, 1)
    assert read(again, redelivered=True, **call).message.key == first.message.key
    copy = parked_copy(raw, queue=QUEUE, redelivered=redelivered, message_id=first.message.message_id, **call)
    back = returned(_redelivered(copy, 1))
    assert back.message.key == first.message.key
    assert type(back) is type(first)
    assert back.redelivered is (redelivered or first.redelivered)
    second = parked_copy(
        again, queue=QUEUE, redelivered=redelivered, message_id=first.message.message_id, frame_max=0, **call
    )
    assert returned(second).message.key == first.message.key
    assert (back.message.exchange, back.message.routing_key) == (first.message.exchange, first.message.routing_key)


@given(wire.lists(), st.binary(max_size=200), st.booleans(), st.sampled_from((None, OVERFLOW, RecursionError("deep"))))
@settings(deadline=None, max_examples=500)
def test_every_delivery_of_a_broker_is_decoded_or_malformed_and_storable(
    raw: bytes, body: bytes, back: bool, fault: Exception | None
) -> None:
    found = (returned if back else read)(raw, body=body, fault=fault)
    _storable(found)
    if isinstance(found, Decoded):
        envelope = found.envelope(ATTEMPT)
        dict(envelope.headers)
        dict(envelope.attributes)
        assert fault is None


@given(st.binary(max_size=100), st.binary(max_size=100))
@settings(deadline=None, max_examples=500)
def test_any_bytes_at_all_are_decoded_or_malformed(raw: bytes, body: bytes) -> None:
    found = read(raw, body=body)
    _storable(found)
    try:
        PropertyList(raw)
    except MalformedProperties as error:
        assert isinstance(found, Malformed)
        assert str(error) in found.reason


def _storable(found: Decoded | Malformed) -> None:
    message = found.message
    for value in (*dataclasses.astuple(message), getattr(found, "reason", "")):
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()
    assert len(message.message_id.encode()) <= 255
    assert len(message.source.encode()) <= 1024
    assert len(message.type.encode()) <= 255
    assert isinstance(message.key, UUID)
