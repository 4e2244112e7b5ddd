"""The property lists of what is made of rows: of a copy to the work queue, and of a dead letter.

A stored list may be that of a first delivery or that of a copy which came back from a parking queue, and a row does not
say which. Taken for the wrong one, a copy would come back as another message. So each way is tried, and one is taken
only if the copy, read as its delivery will be, has the key of its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumers.codec import decode
from consumers.copies import parked_copy
from consumers.errors import HeadersTooLarge, MalformedProperties
from consumers.fields import long_string
from consumers.header_frame import check_header_frame
from consumers.origin import OWN_HEADERS
from consumers.properties import PERSISTENT, PropertyList
from inbox import Message, State
from inbox.obligations import Owing

KEY: Final = b"x-inbox-key"
CONSUMER: Final = b"x-inbox-consumer"
GENERATION: Final = b"x-inbox-generation"
STATE: Final = b"x-inbox-state"
REASON: Final = b"x-inbox-reason"
ERROR_CLASS: Final = b"x-inbox-error-class"
ENDED_AT: Final = b"x-inbox-ended-at"

_NAMING: Final = frozenset({KEY, CONSUMER, GENERATION, STATE, REASON, ERROR_CLASS, ENDED_AT})

_EMPTY_LIST = b"\x00\x00"


def copy_of(message: Message, *, queue: str) -> bytes | None:
    """Return the property list of a copy that comes back from the work queue as the same message; None: there is none.

    :param queue: the work queue, to which the copy goes through the default exchange.
    """
    other = None
    for exchange, routing_key in _deliveries(message, queue):
        try:
            copy = parked_copy(
                message.properties,
                queue=queue,
                exchange=exchange,
                routing_key=routing_key,
                redelivered=True,
                message_id=message.message_id,
            )
        except (MalformedProperties, HeadersTooLarge):
            continue
        again = decode(
            consumer=message.consumer,
            queue=queue,
            body=message.body,
            properties=copy,
            fault=None,
            exchange="",
            routing_key=queue,
            redelivered=False,
        ).message
        if again.key != message.key:
            continue
        if (again.exchange, again.routing_key) == (message.exchange, message.routing_key):
            return copy
        # Where the frame is too small, a copy says less than its row; it is the same message all the same.
        other = other or copy
    return other


def dead_letter_of(owing: Owing, *, queue: str) -> bytes:
    """Return the property list of a dead letter that is owed: the sender's headers, and others that name its row.

    :param queue: the work queue.
    """
    said = {
        GENERATION: str(owing.obligation.generation),
        STATE: owing.obligation.state.value,
        REASON: owing.reason,
        ERROR_CLASS: owing.error_class,
        ENDED_AT: None if owing.ended_at is None else owing.ended_at.isoformat(),
    }
    return _dead_letter(owing.message, said, queue=queue)


def dead_letter_before(message: Message, *, state: State, reason: str, queue: str) -> bytes:
    """Return the property list of a dead letter that is made before its row is: that does not say when it has ended.

    :param state: that the row will have, in its first generation.
    :param queue: the work queue.
    """
    return _dead_letter(message, {GENERATION: "1", STATE: state.value, REASON: reason}, queue=queue)


def _dead_letter(message: Message, said: Mapping[bytes, str | None], *, queue: str) -> bytes:
    # A list that cannot be read, or leaves no room, is left behind; the row has it.
    about = {KEY: str(message.key), CONSUMER: message.consumer, **said}
    own = {name: long_string(value.encode()) for name, value in about.items() if value is not None}
    message_id = message.message_id.encode()[:255].decode("utf-8", "ignore") or str(message.key)
    least = PropertyList(_EMPTY_LIST).edit().set_octet("delivery_mode", PERSISTENT)
    letter = least.set_text("message_id", message_id.encode()).add_headers(own.items()).encoded()
    copy = copy_of(message, queue=queue)
    if copy is None:
        return letter
    listed = PropertyList(copy)
    # Those of the sender too that the row has nothing to say for: they would be taken for ours.
    full = listed.edit().drop_headers(_NAMING.__contains__).add_headers(own.items()).encoded()
    try:
        check_header_frame(full)
    except HeadersTooLarge:
        return letter
    return full


def _deliveries(message: Message, queue: str) -> list[tuple[str, str]]:
    first, returned = (message.exchange, message.routing_key), ("", queue)
    try:
        was_returned = any(entry[0] in OWN_HEADERS for entry in PropertyList(message.properties).entries)
    except MalformedProperties:
        return []
    return [returned, first] if was_returned else [first, returned]
