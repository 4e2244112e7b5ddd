"""What goes out: the bytes as they are, with the id that a return is found by, and never more than one frame."""

from __future__ import annotations

import pamqp.frame
import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from consumers.errors import HeadersTooLarge, MalformedProperties
from consumers.header_frame import (
    DEFAULT_FRAME_MAX,
    RawProperties,
    check_header_frame,
    fits_header_frame,
    header_frame_size,
)
from tests.support.property_lists import listing, nested, text

ODD = listing([(b"n" * 200, text(b"\xff")), (b"deep", nested(900))], message_id="m", timestamp=-1)


def test_the_client_sends_the_bytes_as_they_are() -> None:
    frame = pamqp.frame.marshal(ContentHeader(properties=RawProperties(ODD), body_size=7), 3)
    assert frame[7:-1] == b"\x00\x3c\x00\x00" + (7).to_bytes(8, "big") + ODD
    assert len(frame[7:-1]) == header_frame_size(ODD)


def test_the_client_takes_them_for_properties() -> None:
    properties = RawProperties(listing(message_id="é"))
    assert isinstance(properties, commands.Basic.Properties)
    assert properties.message_id == "é"
    assert ContentHeader(properties=properties).properties is properties


@pytest.mark.parametrize("raw", [listing(), listing(message_id="")])
def test_a_list_without_a_message_id_is_not_published(raw: bytes) -> None:
    with pytest.raises(ValueError, match="message id"):
        RawProperties(raw)


def test_bytes_that_are_no_list_are_not_published() -> None:
    with pytest.raises(MalformedProperties):
        RawProperties(b"\x20\x00\x00")


def test_a_header_may_fill_the_frame_and_not_a_byte_more() -> None:
    largest = listing([(b"k", text("x" * (DEFAULT_FRAME_MAX - 8 - 12 - 2 - 4 - 2 - 5)))])
    assert header_frame_size(largest) == DEFAULT_FRAME_MAX - 8
    assert fits_header_frame(largest)
    check_header_frame(largest)
    with pytest.raises(HeadersTooLarge) as caught:
        check_header_frame(largest + b"x")
    assert (caught.value.size, caught.value.limit) == (DEFAULT_FRAME_MAX - 7, DEFAULT_FRAME_MAX - 8)
    assert "131065 bytes" in str(caught.value)


def test_the_limit_is_the_negotiated_one() -> None:
    raw = listing([(b"k", text("x" * 5_000))])
    assert not fits_header_frame(raw, 4_096)
    assert fits_header_frame(raw, 8_192)
    check_header_frame(raw * 100, 0)
