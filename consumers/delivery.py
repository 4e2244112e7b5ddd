"""A delivery: one arrival of one message, as raw as the broker brought it. Decoding it is the codec's work."""

from __future__ import annotations

from dataclasses import dataclass, field

from consumers.settlement import Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One arrival of a message. It has to be settled, whatever happens.

    :param properties: the raw property list, as received.
    :param fault: why the client could not decode the properties; None if it could.
    :param exchange: where it was published to last: "" for the default exchange, through which parked copies return.
    :param routing_key: likewise; what is not UTF-8 in either stands as surrogate escapes.
    :param redelivered: the broker had handed it out before: maybe to a handler, maybe to nobody.
    """

    body: bytes = field(repr=False)
    properties: bytes = field(repr=False)
    fault: Exception | None
    exchange: str
    routing_key: str
    redelivered: bool
    queue: str
    settlement: Settlement
