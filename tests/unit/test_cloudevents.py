"""CloudEvents 1.0: binary and structured mode, their identity, and what is refused by name."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.codec import Decoded, Malformed, decode
from inbox import message_key
from tests.support import property_lists as wire
from tests.support.property_lists import Header, binary, listing, long, text

CALL: dict[str, Any] = {
    "consumer": "invoices",
    "queue": "billing.invoices",
    "fault": None,
    "exchange": "events",
    "routing_key": "order.placed",
    "redelivered": False,
}
REQUIRED = {"id": "e-1", "source": "/shop", "type": "order.placed", "specversion": "1.0"}
KEY = message_key("invoices", "/shop", "e-1")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER_TRACE = "00-ffffffffffffffffffffffffffffffff-b7ad6b7169203331-00"
JSON = "application/cloudevents+json"


def read(properties: bytes, body: bytes = b"{}") -> Decoded | Malformed:
    return decode(properties=properties, body=body, **CALL)


def good(properties: bytes, body: bytes = b"{}") -> Decoded:
    found = read(properties, body)
    assert isinstance(found, Decoded), found
    return found


def bad(properties: bytes, body: bytes = b"{}") -> Malformed:
    found = read(properties, body)
    assert isinstance(found, Malformed), found
    return found


def attributes(prefix: str = "ce-", **changed: str | bytes | None) -> list[Header]:
    """Headers of a binary event; None leaves an attribute out, bytes are values with their type byte."""
    chosen = {**REQUIRED, **changed}
    return [
        (f"{prefix}{name}".encode(), text(value) if isinstance(value, str) else value)
        for name, value in chosen.items()
        if value is not None
    ]


def event(**changed: Any) -> bytes:
    """The body of a structured event; None leaves an attribute out."""
    chosen = {**REQUIRED, "data": {"order": 1}, **changed}
    return json.dumps({name: value for name, value in chosen.items() if value is not None}).encode()


def structured(content_type: str = JSON, headers: list[Header] | None = None) -> bytes:
    return listing(headers, content_type=content_type)


# Binary mode


@pytest.mark.parametrize("prefix", ["ce-", "CE-", "cloudEvents_", "cloudEvents:", "cloudevents_", "CLOUDEVENTS:"])
def test_a_binary_event_is_read_under_each_prefix(prefix: str) -> None:
    raw = listing(
        [(b"tenant", text("acme")), *attributes(prefix, subject="orders/1", time="2026-11-30T12:00:00Z", region="eu")],
        content_type="application/json; charset=utf-8",
        message_id="amqp-id",
        app_id="api",
        type="amqp-type",
    )
    found = good(raw, b'{"order": 1}')
    assert found.message.key == KEY
    assert (found.message.message_id, found.message.source, found.message.type) == ("e-1", "/shop", "order.placed")
    assert (found.subject, found.time) == ("orders/1", datetime(2026, 11, 30, 12, tzinfo=UTC))
    assert found.content_type == "application/json; charset=utf-8"
    assert found.data == b'{"order": 1}'
    assert found.attributes["region"] == "eu"
    assert found.headers["tenant"] == "acme"
    assert found.headers[f"{prefix}id"] == "e-1"


def test_names_of_attributes_are_read_in_any_case() -> None:
    headers = [(b"Ce-Id", text("e-1")), (b"CE-SOURCE", text("/shop")), *attributes(id=None, source=None)]
    assert good(listing(headers)).message.key == KEY


def test_bytes_that_are_utf8_are_text() -> None:
    assert good(listing(attributes(id=binary("é".encode())))).message.message_id == "é"


def test_a_stray_header_with_a_prefix_makes_no_event() -> None:
    found = good(listing([(b"ce-region", text("eu"))], message_id="m"))
    assert (found.message.message_id, found.message.source) == ("m", "events")
    assert dict(found.attributes) == {}


@pytest.mark.parametrize("name", ["id", "source", "type", "specversion"])
def test_a_binary_event_without_a_required_attribute_is_refused_by_name(name: str) -> None:
    found = bad(listing(attributes(**{name: None}), message_id="amqp-id"))
    assert found.reason == f"CloudEvents {name} is missing"
    identified = name in ("type", "specversion")
    assert (found.message.key == KEY) is identified
    assert found.message.message_id == ("" if name == "id" else "e-1")


@pytest.mark.parametrize("name", ["id", "source", "type", "specversion"])
def test_one_required_attribute_is_enough_to_be_judged_as_an_event(name: str) -> None:
    headers = [(f"ce-{name}".encode(), text(REQUIRED[name]))]
    assert "CloudEvents" in bad(listing(headers, message_id="amqp-id")).reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"id": ""}, "CloudEvents id is empty"),
        ({"id": long(5)}, "CloudEvents id is not text but 5"),
        ({"id": b"t\x01"}, "CloudEvents id is not text but True"),
        ({"id": b"V"}, "CloudEvents id is missing"),
        ({"id": wire.table((b"k", b"V"))}, "CloudEvents id is not text but a table"),
        ({"id": text(b"caf\xe9")}, "CloudEvents id is not UTF-8: b'caf\\xe9'"),
        ({"id": "a\0b"}, "CloudEvents id holds NUL"),
        ({"id": "x" * 256}, "CloudEvents id is 256 bytes long, and 255 is the limit"),
        ({"id": "é" * 128}, "CloudEvents id is 256 bytes long"),
        ({"source": "s" * 1025}, "CloudEvents source is 1025 bytes long, and 1024 is the limit"),
        ({"source": wire.moment(5)}, "CloudEvents source is not text but datetime"),
    ],
)
def test_an_event_without_a_usable_identity_is_kept_under_its_bytes(changed: dict[str, Any], reason: str) -> None:
    found = bad(listing(attributes(**changed)))
    assert found.reason.startswith(reason)
    assert found.message.key == bad(listing(attributes(**changed))).message.key
    assert found.message.key not in (KEY, bad(listing(attributes(**changed)), b"other").message.key)


def test_an_id_of_exactly_the_limit_is_taken() -> None:
    assert good(listing(attributes(id="é" * 127 + "x"))).message.message_id == "é" * 127 + "x"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"specversion": "0.3"}, "CloudEvents specversion '0.3' is not supported: 1.0 is"),
        ({"specversion": "1.1"}, "CloudEvents specversion '1.1' is not supported"),
        ({"specversion": b"d\x3f\xf0" + b"\0" * 6}, "CloudEvents specversion 1.0 is not supported"),
        ({"type": "t" * 256}, "CloudEvents type is 256 bytes long, and 255 is the limit"),
        ({"type": ""}, "CloudEvents type is empty"),
        ({"type": long(1)}, "CloudEvents type is not text but 1"),
        ({"subject": long(1)}, "CloudEvents subject is not text but 1"),
        ({"time": "yesterday"}, "CloudEvents time is not an RFC 3339 timestamp: 'yesterday'"),
        ({"time": ""}, "CloudEvents time is not an RFC 3339 timestamp: ''"),
        ({"time": long(1_700_000_000)}, "CloudEvents time is not an RFC 3339 timestamp: 1700000000"),
        ({"time": text(b"\xff")}, "CloudEvents time is not an RFC 3339 timestamp: b'\\xff'"),
    ],
)
def test_an_event_whose_identity_can_be_read_is_malformed_under_its_own_key(
    changed: dict[str, Any], reason: str
) -> None:
    found = bad(listing(attributes(**changed)))
    assert found.reason.startswith(reason)
    assert found.message.key == KEY


def test_the_first_problem_is_the_reason() -> None:
    found = bad(listing(attributes(specversion="0.3", time="never", type=None)))
    assert found.reason.startswith("CloudEvents specversion")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-11-30T12:00:00Z", datetime(2026, 11, 30, 12, tzinfo=UTC)),
        ("2026-11-30t12:00:00z", datetime(2026, 11, 30, 12, tzinfo=UTC)),
        ("2026-11-30T12:00:00.123456789Z", datetime(2026, 11, 30, 12, microsecond=123456, tzinfo=UTC)),
        ("2026-11-30T12:00:00+05:30", datetime(2026, 11, 30, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        ("2026-11-30T12:00:00", datetime(2026, 11, 30, 12, tzinfo=UTC)),
        ("2016-12-31T23:59:60Z", datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (wire.moment(1_700_000_000), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    ],
)
def test_times_are_read(value: str | bytes, expected: datetime) -> None:
    assert good(listing(attributes(time=value))).time == expected


def test_an_attribute_that_is_given_twice_must_not_contradict_itself() -> None:
    twice = [*attributes(), (b"cloudEvents_id", text("e-1"))]
    assert good(listing(twice)).message.key == KEY
    contradicted = [*attributes(), (b"cloudEvents_id", text("e-2"))]
    found = bad(listing(contradicted))
    assert found.reason == "CloudEvents 'id' is given twice, and differently"
    assert found.message.message_id == ""
    swapped = bad(listing([contradicted[-1], *contradicted[:-1]]))
    assert swapped.message.key == found.message.key, "the broker sorts headers when it adds one"


def test_a_contradicted_extension_leaves_the_identity_readable() -> None:
    found = bad(listing([*attributes(region="eu"), (b"cloudEvents_region", text("us"))]))
    assert found.message.key == KEY


def test_the_content_type_may_stand_in_an_attribute_of_its_own() -> None:
    assert good(listing(attributes(datacontenttype="text/plain"))).content_type == "text/plain"
    both = listing(attributes(datacontenttype="text/plain"), content_type="application/json")
    assert good(both).content_type == "application/json"
    assert good(listing(attributes())).content_type is None


def test_the_publishing_span_comes_before_the_creating_one() -> None:
    assert good(listing(attributes(traceparent=TRACE))).message.traceparent == TRACE
    header = (b"traceparent", text(OTHER_TRACE))
    assert good(listing([*attributes(traceparent=TRACE), header])).message.traceparent == OTHER_TRACE
    broken = (b"traceparent", text("broken"))
    assert good(listing([*attributes(traceparent=TRACE), broken])).message.traceparent == TRACE


# Structured mode


@pytest.mark.parametrize(
    "content_type",
    [JSON, "Application/CloudEvents+JSON", f"{JSON}; charset=utf-8", f'{JSON};charset="UTF-8"', f"{JSON} ; x=y"],
)
def test_a_structured_event_is_read_from_its_body(content_type: str) -> None:
    body = event(subject="orders/1", time="2026-11-30T12:00:00Z", region="eu", traceparent=TRACE)
    found = good(structured(content_type, [(b"tenant", text("acme"))]), body)
    assert found.message.key == KEY
    assert (found.message.type, found.message.traceparent) == ("order.placed", TRACE)
    assert (found.subject, found.time) == ("orders/1", datetime(2026, 11, 30, 12, tzinfo=UTC))
    assert found.content_type == "application/json"
    assert json.loads(found.data) == {"order": 1}
    assert found.message.body is body
    assert found.attributes["region"] == "eu"
    assert "data" not in found.attributes
    assert dict(found.headers) == {"tenant": "acme"}


def test_structured_data_is_the_bytes_that_stand_in_the_body() -> None:
    payload = b'{"b" :  1.10,"b":123456789012345678901234567890, "a":"\\u00e9"}'
    body = b'{"specversion":"1.0", "id":"e-1","data" : ' + payload + b' ,"source":"/shop","type":"t"}'
    assert good(structured(), body).data == payload


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"data": None}, b""),
        ({"data": "text"}, b'"text"'),
        ({"data": "text", "datacontenttype": "application/vnd.shop+json"}, b'"text"'),
        ({"data": "<a>é</a>", "datacontenttype": "text/xml; charset=utf-8"}, "<a>é</a>".encode()),
        ({"data": {"a": 1}, "datacontenttype": "text/xml"}, b'{"a": 1}'),
        ({"data": None, "data_base64": base64.b64encode(b"\xff\0").decode()}, b"\xff\0"),
        ({"data": None, "data_base64": ""}, b""),
    ],
)
def test_the_payload_is_what_the_json_format_says(changed: dict[str, Any], expected: bytes) -> None:
    assert good(structured(), event(**changed)).data == expected


def test_null_is_an_absent_attribute_and_a_present_payload() -> None:
    body = b'{"specversion":"1.0","id":"e-1","source":"/shop","type":"t","subject":null,"data_base64":null,"data":null}'
    found = good(structured(), body)
    assert (found.subject, found.data) == (None, b"null")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"data_base64": "eA=="}, "CloudEvents data and data_base64 are both there"),
        ({"data": None, "data_base64": "e"}, "CloudEvents data_base64 is not base64"),
        ({"data": None, "data_base64": "é==="}, "CloudEvents data_base64 is not base64"),
        ({"data": None, "data_base64": 5}, "CloudEvents data_base64 is not base64"),
        ({"data": None, "data_base64": ["eA=="]}, "CloudEvents data_base64 is not base64"),
        ({"datacontenttype": 5}, "CloudEvents datacontenttype is not text but 5"),
        ({"specversion": "0.3"}, "CloudEvents specversion '0.3' is not supported"),
        ({"specversion": 1.0}, "CloudEvents specversion 1.0 is not supported"),
        ({"type": ["t"]}, "CloudEvents type is not text but a list"),
        ({"time": 1_700_000_000}, "CloudEvents time is not an RFC 3339 timestamp"),
    ],
)
def test_a_structured_event_whose_identity_can_be_read_keeps_its_key(changed: dict[str, Any], reason: str) -> None:
    found = bad(structured(), event(**changed))
    assert found.reason.startswith(reason)
    assert found.message.key == KEY


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"id": 5}, "CloudEvents id is not text but 5"),
        ({"id": 1 << 70}, "CloudEvents id is not text but a number"),
        ({"id": {"a": 1}}, "CloudEvents id is not text but a table"),
        ({"id": ""}, "CloudEvents id is empty"),
        ({"id": None}, "CloudEvents id is missing"),
        ({"id": "a\0b"}, "CloudEvents id holds NUL"),
        ({"source": None}, "CloudEvents source is missing"),
        ({"source": "s" * 1025}, "CloudEvents source is 1025 bytes long"),
    ],
)
def test_a_structured_event_without_a_usable_identity_is_kept_under_its_bytes(
    changed: dict[str, Any], reason: str
) -> None:
    found = bad(structured(), event(**changed))
    assert found.reason.startswith(reason)
    assert found.message.key not in (KEY, bad(structured(), event(**changed, x="other")).message.key)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"{",
        b"{} {}",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"id": NaN}',
        b'{"id": "\\ud800"}',
        b'{"data": "\\ud800\\u0041"}',
        b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    found = bad(structured(), body)
    assert found.reason.startswith("the body is not a CloudEvent in JSON: ")
    assert (found.message.message_id, found.message.body) == ("", body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"\xed\xa0\x80","source":"/shop","type":"t","specversion":"1.0"}',
        b'{"id":' + b"1" * 5_000 + b',"source":"/shop","type":"t","specversion":"1.0"}',
        b'{"id":1e999,"source":"/shop","type":"t","specversion":"1.0"}',
    ],
)
def test_a_value_that_json_does_not_have_is_no_id(body: bytes) -> None:
    found = bad(structured(), body)
    assert found.reason.startswith("CloudEvents 'id' is not valid JSON: ")
    assert found.message.message_id == ""


def test_text_that_is_not_utf8_in_a_text_payload_is_refused() -> None:
    body = b'{"id":"e-1","source":"/shop","type":"t","specversion":"1.0","datacontenttype":"text/plain","data":"\xff"}'
    found = bad(structured(), body)
    assert found.reason.startswith("CloudEvents 'data' is not valid JSON")
    assert found.message.key == KEY


@pytest.mark.parametrize(
    "content_type",
    [
        "application/cloudevents-batch+json",
        "application/cloudevents+avro",
        "application/cloudevents",
        f"{JSON}; charset=utf-16",
    ],
)
def test_other_formats_are_refused_by_name(content_type: str) -> None:
    found = bad(listing(content_type=content_type, message_id="amqp-id"), b"[]")
    assert found.reason.startswith(f"content_type b'{content_type}'")
    assert found.message.message_id == "", "the ids of a batch stand in it, not on it"


def test_attributes_cannot_be_changed() -> None:
    for found in (good(listing(attributes())), good(structured(), event())):
        with pytest.raises(TypeError):
            found.attributes["id"] = "other"  # type: ignore[index]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_names = st.sampled_from(
    ("id", "source", "type", "specversion", "time", "subject", "datacontenttype", "data", "data_base64", "traceparent")
)


@given(st.dictionaries(_names, _json), st.sampled_from((JSON, f"{JSON};charset=ascii")))
@settings(deadline=None, max_examples=400)
def test_any_json_object_is_an_event_or_refused(content: dict[str, Any], content_type: str) -> None:
    complete = {**REQUIRED, **content}
    for body in (json.dumps(content).encode(), json.dumps(complete, ensure_ascii=False).encode("utf-8", "replace")):
        found = read(structured(content_type), body)
        if isinstance(found, Decoded):
            assert (found.message.message_id, found.message.source) == (
                json.loads(body)["id"], json.loads(body)["source"]
            )  # fmt: skip


@given(st.dictionaries(_names, wire.values, max_size=5))
@settings(deadline=None, max_examples=400)
def test_any_headers_are_an_event_or_refused(content: dict[str, bytes]) -> None:
    found = read(listing(attributes(**content)))
    assert found.message.properties == listing(attributes(**content))
