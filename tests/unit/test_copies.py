"""Copies for parking queues: the same message, seen by nobody else, and never taken for one that goes in circles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.codec import decode
from consumers.copies import parked_copy
from consumers.errors import HeadersTooLarge, MalformedProperties
from consumers.header_frame import DEFAULT_FRAME_MAX, RawProperties, header_frame_size
from consumers.origin import OWN_HEADERS
from consumers.properties import PropertyList
from tests.support import property_lists as wire
from tests.support.property_lists import TRUE, Header, array, listing, long, table, text

QUEUE = "billing.invoices"
FIRST: dict[str, Any] = {
    "queue": QUEUE,
    "exchange": "shop",
    "routing_key": "order.placed",
    "redelivered": False,
    "message_id": "m-1",
}
BACK = {**FIRST, "exchange": "", "routing_key": QUEUE}
ORIGIN = [(b"inbox-exchange", text("shop")), (b"inbox-routing-key", text("order.placed"))]
LIMIT = DEFAULT_FRAME_MAX - 8


def parked(properties: bytes, **changed: Any) -> bytes:
    return parked_copy(properties, **{**FIRST, **changed})


def parked_again(properties: bytes, **changed: Any) -> bytes:
    return parked_copy(properties, **{**BACK, **changed})


def returned(copy: bytes) -> bytes:
    """What the broker makes of a copy on its way through a parking queue."""
    death = table((b"count", long(1)), (b"reason", text("expired")), (b"queue", text(f"{QUEUE}.park.5s")))
    first = [(f"x-first-death-{name}".encode(), text("x")) for name in ("exchange", "queue", "reason")]
    return PropertyList(copy).edit().add_headers([(b"x-death", array(death)), *first]).encoded()


def key_of(properties: bytes, exchange: str, routing_key: str) -> object:
    return decode(
        consumer="invoices",
        queue=QUEUE,
        body=b"{}",
        properties=properties,
        fault=None,
        exchange=exchange,
        routing_key=routing_key,
        redelivered=False,
    ).message.key


def headers_of(properties: bytes) -> list[Header]:
    listed = PropertyList(properties)
    return [(key, listed.raw[value_at:end]) for key, _, value_at, end in listed.entries]


def test_a_copy_says_where_the_message_came_from_and_is_persistent() -> None:
    raw = listing([(b"tenant", text("acme"))], message_id="m-1", delivery_mode=1, priority=5, reply_to="r")
    assert parked(raw) == listing(
        [(b"tenant", text("acme")), *ORIGIN], message_id="m-1", delivery_mode=2, priority=5, reply_to="r"
    )


def test_a_message_without_headers_gets_some() -> None:
    assert parked(listing(message_id="m-1")) == listing(ORIGIN, message_id="m-1", delivery_mode=2)


def test_what_the_broker_owns_is_dropped_and_what_looks_like_it_stays() -> None:
    owned = [
        (b"x-death", array(table((b"queue", text(QUEUE)), (b"reason", text("expired"))))),
        (b"x-death", text("zz")),
        (b"x-first-death-queue", text("q")),
        (b"x-first-death-exchange", long(5)),
        (b"x-last-death-reason", text("r")),
        (b"x-delivery-count", long(77)),
        (b"x-acquired-count", long(3)),
    ]
    own = [
        (b"x-tenant", text("acme")),
        (b"x-retries", long(3)),
        (b"x-first-deaths", TRUE),
        (b"x-deaths", TRUE),
        (b"X-Death", TRUE),
        (b"cc", text("lower")),
        (b"x-first-death", TRUE),
    ]
    mixed = [header for pair in zip(owned, own, strict=True) for header in pair]
    assert parked(listing(mixed, message_id="m-1")) == listing([*own, *ORIGIN], message_id="m-1", delivery_mode=2)


def test_what_would_act_again_is_carried() -> None:
    queues = array(text("audit"), text("search"))
    raw = listing(
        [(b"CC", queues), (b"a", TRUE), (b"BCC", text("not an array"))],
        message_id="m-1",
        expiration="not a number",
        user_id="shop-user",
    )
    assert parked(raw) == listing(
        [
            (b"a", TRUE),
            *ORIGIN,
            (b"inbox-cc", queues),
            (b"inbox-bcc", text("not an array")),
            (b"inbox-user-id", text("shop-user")),
        ],
        message_id="m-1",
        delivery_mode=2,
    )


def test_names_that_are_not_utf8_keep_their_bytes() -> None:
    copy = parked(listing(message_id="m-1"), exchange="x\udcff", routing_key="k\udcfe\0")
    assert headers_of(copy) == [(b"inbox-exchange", text(b"x\xff")), (b"inbox-routing-key", text(b"k\xfe\0"))]


@pytest.mark.parametrize("existing", [{}, {"message_id": ""}])
def test_a_message_without_an_id_gets_one_that_is_marked(existing: dict[str, str]) -> None:
    copy = parked(listing(**existing), message_id="e-1")
    assert copy == listing([*ORIGIN, (b"inbox-no-id", TRUE)], message_id="e-1", delivery_mode=2)


def test_an_id_of_the_sender_is_never_replaced() -> None:
    for message_id in (b"sender", b"\xff", b"m\0", b"x" * 255):
        copy = parked(listing(message_id=message_id), message_id="other")
        assert PropertyList(copy).text("message_id") == message_id
        assert b"inbox-no-id" not in copy


@pytest.mark.parametrize("unusable", ["", "x" * 256, "\udcff"])
def test_where_no_id_is_given_one_is_made_from_the_message(unusable: str) -> None:
    raw = listing([(b"k", TRUE)], type="t")
    made = PropertyList(parked(raw, message_id=unusable)).text("message_id")
    assert made is not None
    assert len(made) == 22
    assert made.isascii()
    requeued = listing([(b"k", TRUE), (b"x-delivery-count", long(1))], type="t")
    assert PropertyList(parked(requeued, message_id=unusable)).text("message_id") == made
    assert PropertyList(parked(listing(type="u"), message_id=unusable)).text("message_id") != made


# Again and again


def test_a_copy_of_a_returned_copy_is_the_same_list() -> None:
    raw = listing([(b"CC", array(text("q"))), (b"t", TRUE)], user_id="u", expiration="5")
    copy = parked(raw, redelivered=True)
    for _ in range(25):
        again = parked_again(returned(copy))
        assert again == copy
        copy = again


def test_the_mark_of_a_redelivery_stays() -> None:
    raw = listing(message_id="m-1")
    assert b"inbox-redelivered" not in parked_again(returned(parked(raw)))
    marked = parked_again(returned(parked(raw)), redelivered=True)
    assert headers_of(marked) == [*ORIGIN, (b"inbox-redelivered", TRUE)]
    assert parked_again(returned(marked), redelivered=False) == marked


def test_a_message_that_was_published_straight_to_the_queue_needs_no_origin() -> None:
    copy = parked_again(listing(message_id="m-1"))
    assert copy == listing(message_id="m-1", delivery_mode=2)
    assert headers_of(parked_again(returned(copy))) == []


def test_own_headers_that_somebody_passed_on_are_replaced() -> None:
    forged = [
        (b"inbox-exchange", text("evil")),
        (b"inbox-routing-key", text("evil")),
        (b"inbox-redelivered", TRUE),
        (b"inbox-no-id", TRUE),
        (b"inbox-cc", array(text("evil"))),
        (b"inbox-user-id", text("evil")),
        (b"inbox-tenant", text("acme")),
    ]
    copy = parked(listing(forged, message_id="m-1"))
    assert copy == listing([(b"inbox-tenant", text("acme")), *ORIGIN], message_id="m-1", delivery_mode=2)


@given(wire.lists(), st.booleans(), st.sampled_from(((FIRST["exchange"], FIRST["routing_key"]), ("", QUEUE))))
@settings(deadline=None, max_examples=300)
def test_whatever_the_sender_wrote_comes_back_byte_for_byte(
    raw: bytes, redelivered: bool, delivered: tuple[str, str]
) -> None:
    call = {**FIRST, "exchange": delivered[0], "routing_key": delivered[1], "redelivered": redelivered}
    copy = parked_copy(raw, **call)
    again = parked_again(returned(copy))
    assert parked_again(returned(again)) == again
    if delivered[0]:
        assert again == copy

    before, after = PropertyList(raw), PropertyList(copy)
    transient = (b"x-death", b"x-delivery-count", b"x-acquired-count", b"CC", b"BCC", *OWN_HEADERS)
    prefixes = (b"x-first-death-", b"x-last-death-")
    kept = [
        raw[start:end] for key, start, _, end in before.entries if key not in transient and not key.startswith(prefixes)
    ]
    assert [copy[start:end] for _, start, _, end in after.entries][: len(kept)] == kept
    assert all(key in OWN_HEADERS for key, *_ in after.entries[len(kept) :])
    untouched = {
        name: value
        for name, value in before.property_bytes().items()
        if name not in ("expiration", "user_id", "delivery_mode", "message_id")
    }
    changed = {
        name: value for name, value in after.property_bytes().items() if name not in ("delivery_mode", "message_id")
    }
    assert changed == untouched
    assert after.octet("delivery_mode") == 2
    assert after.text("message_id") == (before.text("message_id") or b"m-1")
    assert RawProperties(copy).marshal() == copy


def test_a_list_that_breaks_the_encoding_is_not_copied() -> None:
    with pytest.raises(MalformedProperties):
        parked(listing([(b"k", b"Z")]))


def test_each_own_header_has_one_meaning() -> None:
    assert all(name.startswith(b"inbox-") for name in OWN_HEADERS)
    assert len(set(OWN_HEADERS.values())) == len(OWN_HEADERS)
    assert not any(name.startswith((b"x-", b"ce-", b"cloudEvents")) for name in OWN_HEADERS)


# The frame


def filled(size: int, headers: list[Header] | None = None, **properties: str | bytes | int) -> bytes:
    """A list of exactly so many bytes of header frame."""
    headers = headers or []
    room = size - header_frame_size(listing([*headers, (b"fill", text(""))], **properties))
    raw = listing([(b"fill", text("x" * room)), *headers], **properties)
    assert header_frame_size(raw) == size
    return raw


EVENT = [
    (b"ce-id", text("0191a7b2-7f1e-7c3e-9c1a-1d2e3f405162")),
    (b"ce-source", text("/shop")),
    (b"ce-type", text("order.placed")),
    (b"ce-specversion", text("1.0")),
]
NEAR_LIMIT = {
    "plain": ([], {"message_id": "m-1", "delivery_mode": 2}),
    "plain with app id": ([], {"message_id": "m-1", "app_id": "api"}),
    "event": (EVENT, {"delivery_mode": 2}),
    "event with an AMQP id": (EVENT, {"message_id": "m-1"}),
    "plain with extras": ([(b"CC", array(text("q" * 99)))], {"message_id": "m-1", "user_id": "u", "expiration": "5"}),
}


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize(("headers", "properties"), NEAR_LIMIT.values(), ids=NEAR_LIMIT.keys())
def test_headers_near_the_limit_can_be_parked_and_stay_the_same_message(
    headers: list[Header], properties: dict[str, Any], redelivered: bool
) -> None:
    raw = filled(131_010, headers, **properties)
    given_id = "0191a7b2-7f1e-7c3e-9c1a-1d2e3f405162"
    copy = parked(raw, redelivered=redelivered, message_id=given_id)
    assert header_frame_size(copy) <= LIMIT
    assert key_of(copy, "", QUEUE) == key_of(raw, "shop", "order.placed")
    assert (b"inbox-redelivered" in copy) is redelivered
    assert parked_again(returned(copy), message_id=given_id) == copy


def test_extras_are_left_behind_before_the_routing_key_and_that_before_the_exchange() -> None:
    extras = [(b"inbox-cc", array(text("q" * 50))), (b"inbox-user-id", text("u"))]
    raw = listing([(b"CC", extras[0][1])], message_id="m-1", app_id="api", user_id="u")
    for expected in ([*ORIGIN, *extras], ORIGIN, []):
        exactly = header_frame_size(listing(expected, message_id="m-1", app_id="api", delivery_mode=2)) + 8
        assert headers_of(parked(raw, frame_max=exactly)) == expected


def test_the_exchange_is_kept_where_it_identifies_the_message() -> None:
    plain = listing(message_id="m-1")
    tight = header_frame_size(parked(plain)) + 8 - 1
    assert headers_of(parked(plain, frame_max=tight)) == [ORIGIN[0]]


def test_the_id_that_we_give_is_short_where_room_is_scarce() -> None:
    given_id = "x" * 255
    raw = listing(EVENT)
    roomy = parked(raw, message_id=given_id)
    assert PropertyList(roomy).text("message_id") == given_id.encode()
    tight = parked(raw, message_id=given_id, frame_max=header_frame_size(roomy) - 100)
    made = PropertyList(tight).text("message_id")
    assert made is not None
    assert len(made) == 22
    assert key_of(tight, "", QUEUE) == key_of(raw, "shop", "order.placed")


def test_headers_that_leave_no_room_for_the_identity_are_refused_with_their_size() -> None:
    raw = filled(LIMIT, message_id="m-1", delivery_mode=2)
    with pytest.raises(HeadersTooLarge) as caught:
        parked(raw)
    assert caught.value.limit == LIMIT
    assert caught.value.size == LIMIT + len(wire.entry(ORIGIN[0]))
    assert parked(raw, frame_max=0)
    assert len(parked(filled(LIMIT, message_id="m-1", delivery_mode=2, app_id="api"))) + 12 == LIMIT
