"""CloudEvents 1.0 on AMQP, read from a delivery: binary mode (attributes are headers) and structured JSON mode.

A message is an event in binary mode if it carries one of the four required attributes as a header, under one of the
prefixes that are in use; a stray header with such a prefix does not make it one. An event's id and source identify it,
whatever AMQP's own message id says.

The payload of a structured event is kept as the very bytes that stand in the body. Only two forms are decoded, because
the JSON format defines them so: `data_base64`, and text in `data` of an event whose content is not JSON.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

from consumers.fields import Entry
from consumers.properties import PropertyList
from consumers.reading import (
    MAX_SOURCE_BYTES,
    MAX_TYPE_BYTES,
    Reading,
    shown,
    timestamp_of,
    traceparent_of,
)

_MEDIA_TYPE: Final = b"application/cloudevents"
_PREFIXES: Final = (b"ce-", b"cloudevents_", b"cloudevents:")
_REQUIRED: Final = frozenset({"id", "source", "type", "specversion"})
_VERSION: Final = "1.0"
_MAX_SUBJECT_BYTES: Final = 64 * 1024
_DASH: Final = ord("-")

_event = msgspec.json.Decoder(dict[str, msgspec.Raw])
_JSON_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_event(properties: PropertyList, body: bytes) -> Reading | None:
    """Return what a delivery says as a CloudEvent, or None if it is none. Never raises on content."""
    content_type = properties.text("content_type")
    if content_type is not None and content_type[: len(_MEDIA_TYPE)].lower() == _MEDIA_TYPE:
        return _structured(properties, content_type, body)
    return _binary(properties, content_type, body) if properties.entries else None


def is_event(properties: PropertyList) -> bool:
    """Return whether a message's identity is that of a CloudEvent."""
    content_type = properties.text("content_type") or b""
    return content_type[: len(_MEDIA_TYPE)].lower() == _MEDIA_TYPE or not _REQUIRED.isdisjoint(_prefixed(properties)[0])


def _prefixed(properties: PropertyList) -> tuple[dict[str, Entry], set[str]]:
    """Return the headers that are attributes, by their names without prefix, in lower case; and which contradict."""
    found: dict[str, Entry] = {}
    contradicted: set[str] = set()
    for entry in properties.entries:
        key = entry[0].lower()
        if key.startswith(_PREFIXES):
            name = key[3 if key[2] == _DASH else 12 :].decode("utf-8", "replace")
            earlier = found.setdefault(name, entry)
            if earlier is not entry and properties.value_bytes(earlier) != properties.value_bytes(entry):
                contradicted.add(name)
    return found, contradicted


def _binary(properties: PropertyList, content_type: bytes | None, body: bytes) -> Reading | None:
    found, contradicted = _prefixed(properties)
    if _REQUIRED.isdisjoint(found):
        return None
    reading = Reading(data=body)
    # The broker sorts headers when it adds one, so neither of two values is the first: a contradiction is no value.
    attributes = {name: None if name in contradicted else properties.value(entry) for name, entry in found.items()}
    for name in sorted(contradicted):
        reading.refuse(f"CloudEvents {shown(name)} is given twice, and differently")
    _identify(reading, attributes)
    # In binary mode the content type *is* the attribute; a header of that name is what some senders write besides.
    reading.content_type = reading.optional_text(
        "content_type", attributes.get("datacontenttype") if content_type is None else content_type
    )
    _trace(reading, properties, attributes)
    return reading


def _structured(properties: PropertyList, content_type: bytes, body: bytes) -> Reading:
    reading = Reading(data=body)
    media_type, *parameters = content_type.lower().split(b";")
    if media_type.strip() != b"application/cloudevents+json":
        reading.refuse(f"content_type {shown(content_type)} is not supported: single events as JSON are")
        return reading
    for parameter in parameters:
        name, _, charset = parameter.partition(b"=")
        if name.strip() == b"charset" and charset.strip().strip(b'"') not in (b"utf-8", b"utf8", b"us-ascii", b"ascii"):
            reading.refuse(f"content_type {shown(content_type)} is not supported: JSON in UTF-8 is")
            return reading
    try:
        event = _event.decode(body)
    except _JSON_FAULTS as fault:
        reading.refuse(f"the body is not a CloudEvent in JSON: {fault}")
        return reading
    attributes = {
        name: _json_value(reading, name, value) for name, value in event.items() if name not in ("data", "data_base64")
    }
    _identify(reading, attributes)
    reading.content_type = (
        reading.optional_text("CloudEvents datacontenttype", attributes.get("datacontenttype")) or "application/json"
    )
    _payload(reading, event)
    _trace(reading, properties, attributes)
    return reading


def _identify(reading: Reading, attributes: Mapping[str, Any]) -> None:
    reading.message_id = reading.identity("CloudEvents id", attributes.get("id"))
    reading.source = reading.text("CloudEvents source", attributes.get("source"), MAX_SOURCE_BYTES)
    reading.has_source = reading.source != ""
    version = _text(attributes.get("specversion"))
    if version != _VERSION:
        problem = "is missing" if version is None else f"{shown(version)} is not supported: {_VERSION} is"
        reading.refuse(f"CloudEvents specversion {problem}")
    reading.type = reading.text("CloudEvents type", attributes.get("type"), MAX_TYPE_BYTES)
    reading.subject = reading.optional_text("CloudEvents subject", attributes.get("subject"), _MAX_SUBJECT_BYTES)
    reading.time = _time(reading, _text(attributes.get("time")))


def _trace(reading: Reading, properties: PropertyList, attributes: dict[str, Any]) -> None:
    # A header names the span that published the message, the attribute the one in which the event was made.
    header = properties.find(b"traceparent")
    reading.traceparent = None if header is None else traceparent_of(properties.value(header))
    reading.traceparent = reading.traceparent or traceparent_of(attributes.get("traceparent"))
    reading.attributes = MappingProxyType(attributes)


def _time(reading: Reading, value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    moment = timestamp_of(value) if isinstance(value, str) else None
    if moment is None:
        reading.refuse(f"CloudEvents time is not an RFC 3339 timestamp: {shown(value)}")
    return moment


def _payload(reading: Reading, event: Mapping[str, msgspec.Raw]) -> None:
    raw, encoded = event.get("data"), event.get("data_base64")
    if encoded is not None and bytes(encoded) == b"null":
        encoded = None
    reading.data = b"" if raw is None else bytes(raw)
    if raw is not None and encoded is not None:
        reading.refuse("CloudEvents data and data_base64 are both there")
    elif raw is not None and reading.data[:1] == b'"' and not _is_json(reading.content_type):
        reading.data = (_json_value(reading, "data", raw) or "").encode()
    elif encoded is not None:
        try:
            reading.data = binascii.a2b_base64(_json_value(reading, "data_base64", encoded), strict_mode=True)
        except (ValueError, TypeError):
            reading.refuse("CloudEvents data_base64 is not base64")


def _is_json(content_type: str | None) -> bool:
    subtype = (content_type or "").partition(";")[0].strip().lower().rpartition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def _json_value(reading: Reading, name: str, value: msgspec.Raw) -> Any:
    """Return a JSON value; None, and the message is refused, if it is not valid: the decoder did not look into it."""
    try:
        return msgspec.json.decode(value)
    except _JSON_FAULTS as fault:
        reading.refuse(f"CloudEvents {shown(name)} is not valid JSON: {fault}")
        return None


def _text(value: Any) -> Any:
    """Return bytes that are UTF-8 as text, and anything else as it is."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
