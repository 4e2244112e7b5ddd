"""Copies made from rows: the same message again, whichever of its deliveries was stored; and what dead letters say."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.codec import decode
from consumers.copies import parked_copy
from consumers.errors import HeadersTooLarge
from consumers.header_frame import DEFAULT_FRAME_MAX, RawProperties, fits_header_frame
from consumers.owed_copies import copy_of, dead_letter_of
from consumers.properties import PropertyList
from inbox import Message
from inbox.obligations import Obligation, Owed, Owing
from inbox.states import State
from tests.support import property_lists as wire
from tests.support.property_lists import TRUE, Header, listing, text

QUEUE = "billing.invoices"
FIRST = ("shop", "order.placed")
RETURNED = ("", QUEUE)
ENDED_AT = datetime(2026, 3, 1, 9, 14, 2, tzinfo=UTC)


def stored(properties: bytes, exchange: str = FIRST[0], routing_key: str = FIRST[1], body: bytes = b"{}") -> Message:
    """What is on record of a message that was first recorded on this delivery."""
    return decode(
        consumer="invoices",
        queue=QUEUE,
        body=body,
        properties=properties,
        fault=None,
        exchange=exchange,
        routing_key=routing_key,
        redelivered=False,
    ).message


def comes_back(message: Message) -> Message:
    """What the copy of a row is, read as it is delivered."""
    copy = copy_of(message, queue=QUEUE)
    assert copy is not None
    return stored(copy, *RETURNED, body=message.body)


def parked(properties: bytes, exchange: str = FIRST[0], routing_key: str = FIRST[1]) -> bytes:
    return parked_copy(
        properties, queue=QUEUE, exchange=exchange, routing_key=routing_key, redelivered=False, message_id="m-1"
    )


def headers_of(properties: bytes | None) -> list[Header]:
    assert properties is not None
    listed = PropertyList(properties)
    return [(key, listed.raw[value_at:end]) for key, _, value_at, end in listed.entries]


def identity(message: Message) -> tuple[Any, ...]:
    return message.key, message.source, message.message_id, message.type, message.exchange, message.routing_key


def owing(message: Message, **said: Any) -> Owing:
    obligation = Obligation(
        what=Owed.DEAD_LETTER,
        key=message.key,
        generation=3,
        state=State.EXHAUSTED,
        changed_at=ENDED_AT,
        message_id=message.message_id,
        type=message.type,
        body_bytes=len(message.body),
    )
    fields: dict[str, Any] = {"reason": "attempts", "error_class": "billing.TaxError", "ended_at": ENDED_AT, **said}
    return Owing(obligation=obligation, message=message, **fields)


def letter_of(message: Message, **said: Any) -> PropertyList:
    return PropertyList(dead_letter_of(owing(message, **said), queue=QUEUE))


def said_by(letter: PropertyList) -> dict[str, Any]:
    return {name: value for name, value in letter.headers().items() if name.startswith("x-inbox-")}


FULL = {
    "x-inbox-consumer": "invoices",
    "x-inbox-generation": "3",
    "x-inbox-state": "exhausted",
    "x-inbox-reason": "attempts",
    "x-inbox-error-class": "billing.TaxError",
    "x-inbox-ended-at": ENDED_AT.isoformat(),
}


def test_a_copy_made_of_a_first_delivery_is_its_parked_copy_that_counts_as_redelivered() -> None:
    raw = listing([(b"tenant", text("acme"))], message_id="m-1", type="order")
    message = stored(raw)
    assert identity(comes_back(message)) == identity(message)
    assert copy_of(message, queue=QUEUE) == parked_copy(
        raw, queue=QUEUE, exchange="shop", routing_key="order.placed", redelivered=True, message_id="m-1"
    )


def test_a_copy_made_of_a_returned_copy_says_the_same_origin_once() -> None:
    message = stored(parked(listing(message_id="m-1")), *RETURNED)
    assert (message.exchange, message.routing_key) == FIRST
    assert identity(comes_back(message)) == identity(message)
    assert headers_of(copy_of(message, queue=QUEUE)) == [
        (b"inbox-exchange", text("shop")),
        (b"inbox-routing-key", text("order.placed")),
        (b"inbox-redelivered", TRUE),
    ]


def test_a_message_that_was_published_straight_to_the_queue_comes_back_as_itself() -> None:
    message = stored(listing(message_id="m-1"), *RETURNED)
    assert identity(comes_back(message)) == identity(message)


def test_a_message_without_an_id_keeps_the_key_that_was_made_of_its_bytes() -> None:
    for raw, delivered in ((listing([(b"a", TRUE)]), FIRST), (parked(listing([(b"a", TRUE)])), RETURNED)):
        message = stored(raw, *delivered)
        assert message.message_id == ""
        assert identity(comes_back(message)) == identity(message)


def test_own_headers_that_a_sender_passed_on_are_not_believed() -> None:
    # As when a message of another fleet's parking queue is published again through an exchange.
    passed_on = [(b"inbox-exchange", text("elsewhere")), (b"inbox-routing-key", text("k")), (b"inbox-no-id", TRUE)]
    message = stored(listing(passed_on, message_id="m-1"))
    assert (message.exchange, message.message_id) == ("shop", "m-1")
    assert identity(comes_back(message)) == identity(message)


def test_of_two_ways_to_read_a_list_the_one_with_the_exchange_of_the_row_is_taken() -> None:
    # Its source is named by its app_id, so that both ways lead to its key; only the origin tells them apart.
    forged = [(b"inbox-exchange", text("elsewhere")), (b"inbox-routing-key", text("k"))]
    message = stored(listing(forged, message_id="m-1", app_id="shop"))
    again = comes_back(message)
    assert (again.key, again.exchange, again.routing_key) == (message.key, *FIRST)


def test_bytes_that_are_another_messages_give_no_copy() -> None:
    message = stored(listing(message_id="m-1"))
    other = stored(listing(message_id="m-2"))
    assert copy_of(replace(message, properties=other.properties), queue=QUEUE) is None
    assert copy_of(replace(message, exchange="elsewhere"), queue=QUEUE) is None


@pytest.mark.parametrize("properties", [b"", b"\x00", b"\xff\xff", b"\x20\x00\x00\x00\x00\x09x"])
def test_a_list_that_cannot_be_read_gives_no_copy_and_a_dead_letter_that_names_its_row(properties: bytes) -> None:
    message = stored(properties)
    assert copy_of(message, queue=QUEUE) is None
    letter = letter_of(message)
    assert said_by(letter) == {"x-inbox-key": str(message.key), **FULL}
    assert letter.octet("delivery_mode") == 2
    assert letter.text("message_id") == str(message.key).encode()


def test_a_dead_letter_has_the_senders_headers_and_others_that_name_its_row() -> None:
    message = stored(listing([(b"tenant", text("acme"))], message_id="m-1", reply_to="r", priority=4))
    letter = letter_of(message)
    assert said_by(letter) == {"x-inbox-key": str(message.key), **FULL}
    assert letter.headers()["tenant"] == "acme"
    assert (letter.text("message_id"), letter.text("reply_to"), letter.octet("priority")) == (b"m-1", b"r", 4)


def test_headers_that_would_name_another_row_are_left_out_also_where_the_row_says_nothing() -> None:
    forged = [
        (f"x-inbox-{name}".encode(), text("forged"))
        for name in ("key", "consumer", "generation", "state", "reason", "error-class", "ended-at")
    ]
    own = [(b"x-inbox-note", text("theirs")), (b"X-Inbox-Key", text("theirs"))]
    letter = letter_of(stored(listing([*forged, *own, *forged], message_id="m-1")), error_class=None, reason=None)
    said = said_by(letter)
    assert "forged" not in said.values()
    assert said.keys() == {f"x-inbox-{name}" for name in ("key", "consumer", "generation", "state", "ended-at", "note")}
    assert letter.headers()["X-Inbox-Key"] == "theirs"


@pytest.mark.parametrize("spare", range(0, 400, 20))
def test_a_dead_letter_leaves_the_senders_headers_behind_where_the_frame_has_no_room_for_both(spare: int) -> None:
    empty = listing([(b"big", text(""))], message_id="m-1", app_id="shop")
    raw = listing(
        [(b"big", text("x" * (DEFAULT_FRAME_MAX - 8 - 12 - len(empty) - spare)))], message_id="m-1", app_id="shop"
    )
    letter = letter_of(stored(raw))
    assert fits_header_frame(letter.raw)
    assert said_by(letter).keys() >= {"x-inbox-key", "x-inbox-state"}
    assert letter.text("message_id") == b"m-1"


@pytest.mark.parametrize("spare", range(0, 140, 7))
def test_near_the_limit_of_a_frame_a_copy_is_the_same_message_or_there_is_none(spare: int) -> None:
    empty = listing([(b"big", text(""))], message_id="m-1")
    raw = listing([(b"big", text("x" * (DEFAULT_FRAME_MAX - 8 - 12 - len(empty) - spare)))], message_id="m-1")
    message = stored(raw)
    copy = copy_of(message, queue=QUEUE)
    if copy is None:
        with pytest.raises(HeadersTooLarge):
            parked_copy(
                raw, queue=QUEUE, exchange="shop", routing_key="order.placed", redelivered=True, message_id="m-1"
            )
    else:
        assert fits_header_frame(copy)
        assert stored(copy, *RETURNED).key == message.key


_exchanges = st.sampled_from(("", "shop", "\udcff", "a\x00b", "ünï"))
_routing_keys = st.sampled_from((QUEUE, "order.placed", "", "\udc80", "other"))
_bodies = st.sampled_from((b"{}", b"", b'{"id": "e-1", "source": "/s", "type": "t", "specversion": "1.0"}'))


@settings(max_examples=400)
@given(wire.lists(), _exchanges, _routing_keys, _bodies, st.integers(0, 3))
def test_whatever_is_on_record_its_copy_comes_back_under_its_key(
    raw: bytes, exchange: str, routing_key: str, body: bytes, rounds: int
) -> None:
    delivery = raw, exchange, routing_key
    for _ in range(rounds):
        delivery = parked(*delivery), *RETURNED
    message = stored(*delivery, body=body)
    copy = copy_of(message, queue=QUEUE)
    letter = PropertyList(dead_letter_of(owing(message), queue=QUEUE))
    assert said_by(letter)["x-inbox-key"] == str(message.key)
    for published in filter(None, (copy, letter.raw)):
        assert RawProperties(published).message_id
        assert fits_header_frame(published)
        assert PropertyList(published).octet("delivery_mode") == 2
    if exchange.isprintable():
        assert copy is not None
    if copy is not None:
        again = stored(copy, *RETURNED, body=body)
        assert identity(again) == identity(message)
        # A copy of a copy is the same list: what is republished many times does not grow.
        assert copy_of(replace(message, properties=copy), queue=QUEUE) == copy


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), wire.lists()), _exchanges, _routing_keys)
def test_whatever_stands_in_a_row_a_copy_has_its_key_or_there_is_none(
    raw: bytes, exchange: str, routing_key: str
) -> None:
    message = replace(stored(listing(message_id="m-1")), properties=raw, exchange=exchange, routing_key=routing_key)
    copy = copy_of(message, queue=QUEUE)
    if copy is not None:
        assert stored(copy, *RETURNED).key == message.key
    assert said_by(letter_of(replace(message, key=uuid4())))["x-inbox-state"] == "exhausted"
