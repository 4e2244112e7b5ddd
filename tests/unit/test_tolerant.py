"""Frames that the client cannot decode: kept, named, and never the end of the connection."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Iterator
from typing import Any

import pamqp.exceptions
import pamqp.frame
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import base, body, commands, header, heartbeat

from consumers import tolerant
from consumers.errors import ClientUnsupported
from consumers.header_frame import RawProperties
from tests.support import property_lists as wire
from tests.support.property_lists import listing, nested, table, text


@pytest.fixture
def plain_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client as it comes, whatever ran in this process before."""
    monkeypatch.setattr(header.ContentHeader, "unmarshal", inspect.unwrap(header.ContentHeader.unmarshal))
    monkeypatch.setattr(base.Frame, "unmarshal", inspect.unwrap(base.Frame.unmarshal))
    monkeypatch.setattr(tolerant, "_installed", False)


@pytest.fixture
def tolerant_client(plain_client: None) -> Iterator[None]:
    tolerant.install()
    yield


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 3, len(payload)) + payload + b"\xce"


def header_frame(raw: bytes, body_size: int = 5) -> bytes:
    return frame(2, struct.pack(">HHQ", 60, 0, body_size) + raw)


def short(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def method_frame(class_id: int, method_id: int, *arguments: bytes) -> bytes:
    return frame(1, struct.pack(">HH", class_id, method_id) + b"".join(arguments))


def decoded(data: bytes) -> Any:
    size, channel, value = pamqp.frame.unmarshal(data)
    assert (size, channel) == (len(data), 3)
    return value


POISON = {
    "a timestamp in microseconds": listing(message_id="m", timestamp=1_700_000_000_000_000),
    "a negative timestamp": listing(message_id="m", timestamp=-1),
    "a header's timestamp in nanoseconds": listing([(b"t", wire.moment(1_700_000_000 * 10**9))], message_id="m"),
    "a header's negative timestamp": listing([(b"t", wire.moment(-1))], message_id="m"),
    "a type that is not UTF-8": listing(message_id="m", type=b"\xff"),
    "an app id that is not UTF-8": listing(message_id="m", app_id=b"caf\xe9"),
    "a content type that is not UTF-8": listing(message_id="m", content_type=b"\xc3"),
    "a header's name that is not UTF-8": listing([(b"\xff", text("v"))], message_id="m"),
    "a name in a nested table that is not UTF-8": listing([(b"t", table((b"\xff", b"V")))], message_id="m"),
    "arrays too deep": listing([(b"deep", nested(2_000))], message_id="m"),
    "tables too deep": listing([(b"deep", nested(2_000, b"F"))], message_id="m"),
}


@pytest.mark.parametrize("raw", POISON.values(), ids=POISON.keys())
def test_the_plain_client_fails_on_it(raw: bytes, plain_client: None) -> None:
    with pytest.raises((pamqp.exceptions.PAMQPException, OverflowError, RecursionError, ValueError)):
        pamqp.frame.unmarshal(header_frame(raw))


@pytest.mark.parametrize("raw", POISON.values(), ids=POISON.keys())
def test_a_header_that_cannot_be_decoded_is_kept_with_its_fault(raw: bytes, tolerant_client: None) -> None:
    kept = decoded(header_frame(raw, body_size=77))
    assert isinstance(kept, header.ContentHeader)
    received, fault = tolerant.received(kept)
    assert received == raw
    assert isinstance(fault, Exception)
    assert (kept.class_id, kept.weight, kept.body_size) == (60, 0, 77)
    assert kept.properties.headers is None


@pytest.mark.parametrize("raw", POISON.values(), ids=POISON.keys())
def test_a_return_that_cannot_be_decoded_still_finds_its_publish(raw: bytes, tolerant_client: None) -> None:
    assert decoded(header_frame(raw)).properties.message_id == RawProperties(raw).message_id == "m"


def test_a_message_id_that_is_not_utf8_still_finds_its_publish(tolerant_client: None) -> None:
    raw = listing(message_id=b"\xffm")
    assert decoded(header_frame(raw)).properties.message_id == RawProperties(raw).message_id == "\udcffm"


def test_a_list_that_is_no_list_has_no_message_id(tolerant_client: None) -> None:
    kept = decoded(header_frame(listing(message_id="m", timestamp=1)[:-1]))
    assert kept.properties.message_id is None
    assert isinstance(tolerant.received(kept)[1], Exception)


def test_a_good_header_is_decoded_as_before(tolerant_client: None) -> None:
    raw = listing([(b"k", text(b"\xff"))], message_id="m", app_id="a", timestamp=1_700_000_000)
    kept = decoded(header_frame(raw))
    assert tolerant.received(kept) == (raw, None)
    assert (kept.properties.message_id, kept.properties.app_id) == ("m", "a")
    assert kept.properties.headers == {"k": b"\xff"}


def test_a_header_without_its_body_size_is_a_broken_connection_as_before(tolerant_client: None) -> None:
    with pytest.raises(pamqp.exceptions.UnmarshalingException):
        pamqp.frame.unmarshal(frame(2, b"\x00\x3c\x00\x00"))


@given(wire.lists())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_list_passes_and_is_kept(tolerant_client: None, raw: bytes) -> None:
    kept = decoded(header_frame(raw))
    assert tolerant.received(kept)[0] == raw


SERVER_METHODS = {
    "deliver": (
        method_frame(60, 60, short(b"t\xff"), b"\0" * 7 + b"\x09", b"\x01", short(b"x\xfe"), short(b"k\xfd\x00")),
        {"consumer_tag": "t\udcff", "delivery_tag": 9, "redelivered": True, "exchange": "x\udcfe"}
        | {"routing_key": "k\udcfd\0"},
    ),
    "get-ok": (
        method_frame(60, 71, b"\0" * 7 + b"\x09", b"\x00", short(b"x\xfe"), short(b"k\xfd"), b"\0\0\0\x05"),
        {"delivery_tag": 9, "redelivered": False, "exchange": "x\udcfe", "routing_key": "k\udcfd", "message_count": 5},
    ),
    "return": (
        method_frame(60, 50, b"\x01\x38", short(b"NO_ROUTE"), short(b""), short(b"k\xfd")),
        {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "", "routing_key": "k\udcfd"},
    ),
    "cancel": (method_frame(60, 30, short(b"\xff"), b"\x01"), {"consumer_tag": "\udcff", "nowait": True}),
    "consume-ok": (method_frame(60, 21, short(b"\xff")), {"consumer_tag": "\udcff"}),
    "declare-ok": (
        method_frame(50, 11, short(b"q\xff"), b"\0\0\0\x01", b"\0\0\0\x02"),
        {"queue": "q\udcff", "message_count": 1, "consumer_count": 2},
    ),
    "channel close": (
        method_frame(20, 40, b"\x01\x96", short(b"no \xff"), b"\0\x3c", b"\0\x28"),
        {"reply_code": 406, "reply_text": "no \udcff", "class_id": 60, "method_id": 40},
    ),
}


@pytest.mark.parametrize(("data", "expected"), SERVER_METHODS.values(), ids=SERVER_METHODS.keys())
def test_short_strings_that_are_not_utf8_keep_their_bytes(
    data: bytes, expected: dict[str, Any], tolerant_client: None
) -> None:
    value = decoded(data)
    assert {name: getattr(value, name) for name in expected} == expected
    assert set(expected) == set(value.attributes())


@pytest.mark.parametrize("data", [data for data, _ in SERVER_METHODS.values()], ids=SERVER_METHODS.keys())
def test_the_plain_client_fails_on_such_a_method(data: bytes, plain_client: None) -> None:
    with pytest.raises(pamqp.exceptions.UnmarshalingException):
        pamqp.frame.unmarshal(data)


_SERVER_FRAMES = st.sampled_from(
    sorted(
        (class_ for class_ in commands.INDEX_MAPPING.values() if class_.__slots__),
        key=lambda class_: class_.__qualname__,
    )
)


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@given(_SERVER_FRAMES, st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_a_method_that_the_client_decodes_comes_out_the_same_the_tolerant_way(
    tolerant_client: None, class_: type[base.Frame], data: st.DataObject
) -> None:
    given_values: dict[str, Any] = {}
    for name in class_.__slots__:
        match class_.amqp_type(name):
            case "bit":
                given_values[name] = data.draw(st.booleans())
            case "shortstr":
                given_values[name] = data.draw(st.sampled_from(("", "name", "a.b-c")))
            case "octet":
                given_values[name] = data.draw(st.integers(0, 255))
            case "short":
                given_values[name] = 0 if name == "ticket" else data.draw(st.integers(0, 32_767))
            case "long" | "longlong":
                given_values[name] = data.draw(st.integers(0, 1 << 31))
            case "table":
                given_values[name] = {"k": "v"}
            case _:
                given_values[name] = "text"
    sent = class_()
    for name, value in given_values.items():
        setattr(sent, name, value)
    sent.validate = lambda: None  # type: ignore[method-assign]
    payload = sent.marshal()
    plain, lenient = class_(), class_()
    plain.unmarshal(payload)
    tolerant._escaped(lenient, payload)
    assert dict(lenient) == dict(plain) == given_values


def test_other_frames_pass_as_before(tolerant_client: None) -> None:
    assert isinstance(pamqp.frame.unmarshal(b"\x08\0\0\0\0\0\0\xce")[2], heartbeat.Heartbeat)
    content = decoded(frame(3, b"\xff\x00"))
    assert isinstance(content, body.ContentBody)
    assert content.value == b"\xff\x00"


def test_installing_twice_wraps_once(tolerant_client: None) -> None:
    wrapped = (header.ContentHeader.unmarshal, base.Frame.unmarshal)
    tolerant.install()
    assert (header.ContentHeader.unmarshal, base.Frame.unmarshal) == wrapped
    assert inspect.unwrap(wrapped[0]) is wrapped[0].__wrapped__  # type: ignore[attr-defined]


def test_a_header_read_before_the_installation_is_told_apart(plain_client: None) -> None:
    early = decoded(header_frame(listing(message_id="m")))
    tolerant.install()
    with pytest.raises(AttributeError):
        tolerant.received(early)


def refused(plain_client: None) -> str:
    before = (header.ContentHeader.unmarshal, base.Frame.unmarshal)
    with pytest.raises(ClientUnsupported) as caught:
        tolerant.install()
    assert (header.ContentHeader.unmarshal, base.Frame.unmarshal) == before
    assert caught.value.version == "4.0.1" or caught.value.version.startswith("4.")
    assert caught.value.version in str(caught.value)
    return caught.value.problem


def test_a_client_whose_methods_decode_themselves_is_refused(
    plain_client: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.Basic.Deliver, "unmarshal", base.Frame.unmarshal)
    assert "Basic.Deliver" in refused(plain_client)


def test_a_client_that_hands_over_another_slice_is_refused(plain_client: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pamqp.frame._unmarshal_header_frame
    monkeypatch.setattr(pamqp.frame, "_unmarshal_header_frame", lambda data: plain(b"\0" + data))
    assert "a header" in refused(plain_client)


def test_a_client_that_never_calls_the_wrapped_methods_is_refused(
    plain_client: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pamqp.frame, "_unmarshal_header_frame", lambda _: header.ContentHeader())
    assert "'missing'" in refused(plain_client)


def test_a_client_that_mends_text_its_own_way_is_refused(plain_client: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def replacing(value: bytes) -> tuple[int, str]:
        return value[0] + 1, value[1 : value[0] + 1].decode("utf-8", "replace")

    monkeypatch.setitem(pamqp.decode.METHODS, "shortstr", replacing)
    assert "not UTF-8" in refused(plain_client)
