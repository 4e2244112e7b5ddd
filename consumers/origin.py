"""What a copy in a parking queue says about the message that it was made from.

The broker forgets on the way through a parking queue: the copy comes back through the default exchange, with the work
queue as routing key, as if nobody had ever seen it. So what may not be lost is written into own headers. They are
believed only on such a return; on any other delivery they are somebody else's headers that were passed on, and mean
nothing. On a return, no own header for exchange and routing key means that the message was published straight to the
queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from consumers.fields import TEXT
from consumers.properties import PropertyList

EXCHANGE: Final = b"inbox-exchange"
ROUTING_KEY: Final = b"inbox-routing-key"
REDELIVERED: Final = b"inbox-redelivered"
NO_ID: Final = b"inbox-no-id"
CC: Final = b"inbox-cc"
BCC: Final = b"inbox-bcc"
USER_ID: Final = b"inbox-user-id"

OWN_HEADERS: Final[Mapping[bytes, str]] = MappingProxyType(
    {
        EXCHANGE: "the exchange that the message was first published to, text",
        ROUTING_KEY: "the routing key that it was first published with, text",
        REDELIVERED: "present: an earlier delivery of the message may have started",
        NO_ID: "present: the sender gave no message id; the one on this copy is ours and identifies nothing",
        CC: "the value of the sender's CC header, which would send the copy to those queues again",
        BCC: "the value of the sender's BCC header, likewise",
        USER_ID: "the sender's user_id property, which the broker compares with who publishes the copy, text",
    }
)

RESENDING: Final[Mapping[bytes, bytes]] = MappingProxyType({b"CC": CC, b"BCC": BCC})
"""Headers by which the broker would send a copy to other queues again, and the own headers that carry them."""

_NOTHING: Final[Mapping[bytes, bytes]] = MappingProxyType({})


class Origin(msgspec.Struct, frozen=True):
    """Where a message comes from, as far as its delivery and its own headers tell.

    :param exchange: first published to; may hold surrogate escapes.
    :param routing_key: first published with; may hold surrogate escapes.
    :param redelivered: the delivery says so, or the copy carries the mark.
    :param returned: the delivery looks like one from a parking queue, so that its own headers are believed.
    :param id_is_ours: the message id is to be taken as absent.
    :param carried: the own headers that are believed: names, and values with their type bytes in front.
    """

    exchange: str
    routing_key: str
    redelivered: bool
    returned: bool
    id_is_ours: bool
    carried: Mapping[bytes, bytes]


def origin_of(properties: PropertyList, *, queue: str, exchange: str, routing_key: str, redelivered: bool) -> Origin:
    """Return the origin of a delivery.

    :param queue: that it was consumed from.
    :param exchange: as delivered, like routing key and flag.
    """
    if exchange or routing_key != queue:
        return Origin(exchange, routing_key, redelivered, returned=False, id_is_ours=False, carried=_NOTHING)
    # Of duplicates the first counts, as it does for the broker.
    carried = {
        entry[0]: properties.value_bytes(entry) for entry in reversed(properties.entries) if entry[0] in OWN_HEADERS
    }
    return Origin(
        exchange=_text(carried, EXCHANGE, exchange),
        routing_key=_text(carried, ROUTING_KEY, routing_key),
        redelivered=redelivered or REDELIVERED in carried,
        returned=True,
        id_is_ours=NO_ID in carried,
        carried=carried,
    )


def _text(carried: Mapping[bytes, bytes], name: bytes, otherwise: str) -> str:
    value = carried.get(name)
    if value is None or value[0] != TEXT:
        return otherwise
    return value[5:].decode("utf-8", "surrogateescape")
