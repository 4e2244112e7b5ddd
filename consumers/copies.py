"""The property list of a message's next copy.

A copy goes into a parking queue and comes back through the default exchange. It must come back as the same message,
reach nobody else, live as long as the queue lets it, and never be taken by the broker for a copy that goes in circles.
So what the broker owns is dropped, what would act again is carried in own headers, and everything else stays byte for
byte. A copy of a returned copy is the same list again.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Final

from consumers.cloudevents import is_event
from consumers.fields import BOOLEAN, LONG, LONG_ALIAS, TRUE, Entry, long_string
from consumers.header_frame import DEFAULT_FRAME_MAX, check_header_frame, fits_header_frame
from consumers.origin import (
    BCC,
    CC,
    EXCHANGE,
    NO_ID,
    OWN_HEADERS,
    REDELIVERED,
    RESENDING,
    ROUTING_KEY,
    USER_ID,
    Origin,
    origin_of,
)
from consumers.properties import PERSISTENT, PropertyList

# RabbitMQ writes these, and believes an `x-death` of anybody's making: one that names the work queue makes it drop the
# copy as a cycle, and one of a wrong form stops the dead-lettering of the whole node.
_BROKER_OWNED: Final = frozenset({b"x-death", b"x-delivery-count", b"x-acquired-count"})
_BROKER_OWNED_PREFIXES: Final = (b"x-first-death-", b"x-last-death-")


def parked_copy(
    properties: bytes,
    *,
    queue: str,
    exchange: str,
    routing_key: str,
    redelivered: bool,
    message_id: str,
    frame_max: int = DEFAULT_FRAME_MAX,
) -> bytes:
    """Return the property list for the copy of a delivery that goes into a parking queue.

    Where the sender's headers leave too little room in the frame, the copy carries less: CC, BCC and user_id are left
    behind first, then the routing key, and the exchange too unless it is part of the message's identity.

    :param properties: the delivery's property list as received.
    :param queue: that it was consumed from.
    :param exchange: as delivered, like routing key; may hold surrogate escapes.
    :param redelivered: an attempt may have started on this delivery or on an earlier one. The mark stays once it is
        there.
    :param message_id: for the copy if the sender gave none; it is marked as ours. "": one is made from the list.
    :param frame_max: negotiated with the broker, in bytes; 0 for no limit.
    :raises MalformedProperties: nothing can be changed in this list; give the delivery back to the broker instead.
    :raises HeadersTooLarge: the sender's headers leave no room for what identifies the message; likewise.
    """
    listed = PropertyList(properties)
    origin = origin_of(listed, queue=queue, exchange=exchange, routing_key=routing_key, redelivered=redelivered)
    given = listed.text("message_id") or b""
    own = _own_headers(listed, origin, has_id=bool(given))
    copy_id = given or _usable(message_id) or _short_id(listed, origin)
    copy = _copy(listed, own, copy_id)
    if not fits_header_frame(copy, frame_max):
        own = _without(own, CC, BCC, USER_ID)
        copy = _copy(listed, own, copy_id)
    if not fits_header_frame(copy, frame_max):
        own = _without(own, *_beside_identity(listed))
        copy = _copy(listed, own, given or min(copy_id, _short_id(listed, origin), key=len))
    check_header_frame(copy, frame_max)
    return copy


def lasting(properties: PropertyList, origin: Origin) -> bytes:
    """Return what is the same in the property list of every copy of a message, to tell messages without an id apart.

    The broker sorts headers when it adds one, and rewrites two types of values. Such bytes are for hashing, no list.
    """
    parts = [
        name.encode() + value
        for name, value in properties.property_bytes().items()
        if name not in ("delivery_mode", "expiration", "user_id")
        and not (name == "message_id" and (origin.id_is_ours or len(value) == 1))
    ]
    parts.extend(sorted(_normalised(properties, entry) for entry in properties.entries if not _is_transient(entry[0])))
    return b"".join(parts)


def _own_headers(listed: PropertyList, origin: Origin, *, has_id: bool) -> dict[bytes, bytes]:
    own = dict(origin.carried)
    if not origin.returned:
        own[EXCHANGE] = long_string(origin.exchange.encode("utf-8", "surrogateescape"))
        own[ROUTING_KEY] = long_string(origin.routing_key.encode("utf-8", "surrogateescape"))
    for name, carrier in RESENDING.items():
        entry = listed.find(name)
        if entry is not None:
            own[carrier] = listed.value_bytes(entry)
    user_id = listed.text("user_id")
    if user_id is not None:
        own[USER_ID] = long_string(user_id)
    if origin.redelivered:
        own[REDELIVERED] = TRUE
    if not has_id:
        own[NO_ID] = TRUE
    return {name: own[name] for name in OWN_HEADERS if name in own}


def _copy(listed: PropertyList, own: dict[bytes, bytes], message_id: bytes) -> bytes:
    return (
        listed.edit()
        .drop("expiration", "user_id")
        .drop_headers(_is_transient)
        .add_headers(own.items())
        .set_octet("delivery_mode", PERSISTENT)
        .set_text("message_id", message_id)
        .encoded()
    )


def _is_transient(name: bytes) -> bool:
    return name in _BROKER_OWNED or name in OWN_HEADERS or name in RESENDING or name.startswith(_BROKER_OWNED_PREFIXES)


def _without(own: dict[bytes, bytes], *names: bytes) -> dict[bytes, bytes]:
    return {name: value for name, value in own.items() if name not in names}


def _beside_identity(listed: PropertyList) -> tuple[bytes, ...]:
    """Return the own headers that the message is the same without, the mark of a redelivery not among them."""
    if is_event(listed):
        # An event is identified by its attributes, whatever AMQP says about exchange and id.
        return ROUTING_KEY, EXCHANGE, NO_ID
    return (ROUTING_KEY, EXCHANGE) if listed.text("app_id") else (ROUTING_KEY,)


def _usable(message_id: str) -> bytes | None:
    try:
        encoded = message_id.encode()
    except UnicodeEncodeError:
        return None
    return encoded if 0 < len(encoded) <= 255 else None


def _short_id(listed: PropertyList, origin: Origin) -> bytes:
    return urlsafe_b64encode(sha256(lasting(listed, origin)).digest()[:16]).rstrip(b"=")


def _normalised(listed: PropertyList, entry: Entry) -> bytes:
    _, start, value_at, end = entry
    kind, value = listed.raw[value_at], listed.raw[value_at + 1 : end]
    if kind == LONG_ALIAS:
        kind = LONG
    elif kind == BOOLEAN:
        value = bytes((value != b"\x00",))
    return listed.raw[start:value_at] + bytes((kind,)) + value
