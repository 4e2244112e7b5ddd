"""Reading a stored message again: what its bytes say, under the identity that was stored."""

from __future__ import annotations

from uuid import uuid4

import pytest

from consumers.codec import Decoded, decode
from consumers.stored import envelope_of
from inbox import Attempt, Message
from tests.support.inboxes import message
from tests.support.property_lists import TRUE, listing, text

ATTEMPT = Attempt(2, 1, uuid4())


def stored(properties: bytes) -> tuple[Decoded, Message]:
    """Return a delivery as it was read, and what was stored of it."""
    decoded = decode(
        consumer="billing",
        queue="work",
        body=b"[1]",
        properties=properties,
        fault=None,
        exchange="shop",
        routing_key="order.placed",
        redelivered=False,
    )
    assert isinstance(decoded, Decoded), decoded
    return decoded, decoded.message


def test_it_is_the_envelope_that_the_message_had() -> None:
    properties = listing(
        message_id="m-1",
        type="order.placed",
        app_id="shop",
        content_type="text/plain",
        headers=[(b"tenant", text("eu"))],
    )
    decoded, message = stored(properties)
    again, before = envelope_of(message, ATTEMPT), decoded.envelope(ATTEMPT)
    assert (again.message, again.data, again.attempt) == (message, b"[1]", ATTEMPT)
    assert dict(again.headers) == dict(before.headers) == {"tenant": "eu"}
    assert (again.content_type, again.exchange, again.routing_key) == ("text/plain", "shop", "order.placed")
    assert again.redelivered
    assert again.decode(list[int]) == [1]


def test_a_copy_from_a_parking_queue_is_the_message_that_it_was_made_from() -> None:
    properties = listing(
        [
            (b"inbox-exchange", text("shop")),
            (b"inbox-routing-key", text("order.placed")),
            (b"inbox-no-id", TRUE),
        ],
        message_id="ours",
    )
    read = decode(
        consumer="billing",
        queue="work",
        body=b"x",
        properties=properties,
        fault=None,
        exchange="",
        routing_key="work",
        redelivered=True,
    )
    again = envelope_of(read.message, ATTEMPT)
    assert (again.id, again.exchange, again.routing_key) == ("", "shop", "order.placed")
    assert (dict(again.headers), again.data) == ({}, b"x")


@pytest.mark.parametrize("properties", [b"", b"\xff\xff\x00", b"\x20\x00\x00\x00\x00\x09x"])
def test_what_cannot_be_read_has_its_body_and_no_headers(properties: bytes) -> None:
    kept = message(properties=properties, body=b"\x00")
    again = envelope_of(kept, ATTEMPT)
    assert (again.message, again.data, dict(again.headers)) == (kept, b"\x00", {})
