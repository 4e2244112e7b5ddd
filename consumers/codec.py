"""From a delivery to a message: who it is, what it says, or by name why it cannot be processed.

`decode` never raises on content, so every delivery has a key under which its fate is recorded. The key of a message is
the same on each of its deliveries: first, redelivered, returned from a parking queue. What the broker or the fleet adds
on the way is no part of it.

The verdict stands on the property list as received. `fault`, the client's failure to decode it, makes a message
malformed even where this module could read on: what a handler would be given is not what other clients see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from consumers.cloudevents import read_event
from consumers.copies import lasting
from consumers.decode_faults import named
from consumers.errors import MalformedProperties
from consumers.fields import moment, value_of
from consumers.lazy_mapping import LazyMapping
from consumers.origin import OWN_HEADERS, RESENDING, Origin, origin_of
from consumers.properties import PropertyList
from consumers.reading import (
    MAX_SOURCE_BYTES,
    MAX_TYPE_BYTES,
    Reading,
    traceparent_of,
)
from inbox import Attempt, Envelope, Message, message_key, unidentified_key

MAX_REASON: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A message that can be processed, and everything that its envelope needs but the attempt.

    :param redelivered: an earlier delivery may have started: the broker says so, or the copy carries the mark.
    :param headers: the sender's headers, decoded when they are first looked at.
    :param attributes: of a CloudEvent, by their names without prefix.
    """

    message: Message
    data: bytes = field(repr=False)
    redelivered: bool
    headers: Mapping[str, Any] = field(repr=False)
    attributes: Mapping[str, Any] = field(repr=False)
    content_type: str | None
    subject: str | None
    time: datetime | None
    correlation_id: str | None

    def envelope(self, attempt: Attempt) -> Envelope:
        """Return what the handler gets in this attempt."""
        message = self.message
        return Envelope(
            message=message,
            data=self.data,
            exchange=message.exchange,
            routing_key=message.routing_key,
            redelivered=self.redelivered,
            attempt=attempt,
            headers=self.headers,
            content_type=self.content_type,
            subject=self.subject,
            time=self.time,
            correlation_id=self.correlation_id,
            attributes=self.attributes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A message that can never be processed; it is recorded with its bytes as they came.

    :param message: under its real key if id and source could be read, else under one derived from its bytes.
    :param reason: names what is wrong; safe to store, bounded in length.
    """

    message: Message
    reason: str
    redelivered: bool


Delivered: TypeAlias = Decoded | Malformed


def decode(
    *,
    consumer: str,
    queue: str,
    body: bytes,
    properties: bytes,
    fault: Exception | None,
    exchange: str,
    routing_key: str,
    redelivered: bool,
) -> Delivered:
    """Return the message that a delivery carries.

    :param consumer: the stable name that keys are made with.
    :param queue: that it was consumed from.
    :param properties: the property list as received.
    :param fault: why the client could not decode that list; None if it could.
    :param exchange: as delivered, like routing key and flag.
    """
    try:
        listed = PropertyList(properties)
    except MalformedProperties as broken:
        return Malformed(
            message=Message(
                key=unidentified_key(consumer, properties, body),
                consumer=consumer,
                source="",
                message_id="",
                type="",
                body=body,
                properties=properties,
                exchange=storable(exchange),
                routing_key=storable(routing_key),
            ),
            reason=_reason(str(broken)),
            redelivered=redelivered,
        )
    origin = origin_of(listed, queue=queue, exchange=exchange, routing_key=routing_key, redelivered=redelivered)
    reading = read_event(listed, body) or _plain(listed, origin, body)
    correlation_id = reading.optional_text("correlation_id", listed.text("correlation_id"))
    problem = reading.problem if fault is None else named(fault, listed)
    identified = reading.message_id and reading.has_source
    message = Message(
        key=message_key(consumer, reading.source, reading.message_id)
        if identified
        else unidentified_key(consumer, lasting(listed, origin), body),
        consumer=consumer,
        source=reading.source,
        message_id=reading.message_id,
        type=reading.type,
        body=body,
        properties=properties,
        exchange=storable(origin.exchange),
        routing_key=storable(origin.routing_key),
        traceparent=reading.traceparent,
    )
    if problem is not None:
        return Malformed(message=message, reason=_reason(problem), redelivered=origin.redelivered)
    return Decoded(
        message=message,
        data=reading.data,
        redelivered=origin.redelivered,
        headers=LazyMapping(lambda: _senders(listed, origin)),
        attributes=reading.attributes,
        content_type=reading.content_type,
        subject=reading.subject,
        time=reading.time,
        correlation_id=correlation_id,
    )


def _plain(properties: PropertyList, origin: Origin, body: bytes) -> Reading:
    """Read a message that is no CloudEvent by its AMQP properties."""
    reading = Reading(data=body)
    message_id = None if origin.id_is_ours else properties.text("message_id")
    reading.message_id = reading.identity("message_id", message_id)
    app_id = properties.text("app_id")
    if app_id:
        reading.source = reading.text("app_id", app_id, MAX_SOURCE_BYTES)
        reading.has_source = reading.source != ""
    else:
        # The default exchange has no name, and is a source like any other.
        reading.source, reading.has_source = storable(origin.exchange), True
    reading.type = reading.optional_text("type", properties.text("type"), MAX_TYPE_BYTES) or ""
    reading.content_type = reading.optional_text("content_type", properties.text("content_type"))
    seconds = properties.timestamp
    if seconds is not None:
        # Many senders write milliseconds. No datetime is so far off that both readings are possible.
        reading.time = moment(seconds) or moment(seconds // 1000)
    traceparent = properties.find(b"traceparent") if properties.entries else None
    if traceparent is not None:
        reading.traceparent = traceparent_of(properties.value(traceparent))
    return reading


def _senders(properties: PropertyList, origin: Origin) -> dict[str, Any]:
    found = {
        entry[0].decode("utf-8", "surrogateescape"): properties.value(entry)
        for entry in properties.entries
        if entry[0] not in OWN_HEADERS
    }
    for name, carrier in RESENDING.items():
        value = origin.carried.get(carrier)
        if value is not None:
            found.setdefault(name.decode(), value_of(value, 0, len(value)))
    return found


def storable(name: str) -> str:
    """Return the name of an exchange or a routing key as PostgreSQL stores it: what text cannot hold is spelled out."""
    if name.isascii() and "\x00" not in name:
        return name
    return name.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _reason(problem: str) -> str:
    problem = storable(problem)
    return problem if len(problem) <= MAX_REASON else problem[: MAX_REASON - 1] + "…"
