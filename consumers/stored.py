"""A message that the database has kept, read again for a handler.

Its identity is what was stored, not what its bytes say: a copy from a parking queue says less without the delivery
that brought it.
"""

from __future__ import annotations

from dataclasses import replace

from consumers.codec import Malformed, decode
from inbox import Attempt, Envelope, Message


def envelope_of(message: Message, attempt: Attempt) -> Envelope:
    """Return a stored message's envelope. One that cannot be read has its body and no headers.

    :param attempt: the one that the envelope is to name.
    """
    decoded = decode(
        consumer=message.consumer,
        queue="",
        body=message.body,
        properties=message.properties,
        fault=None,
        exchange=message.exchange,
        routing_key=message.routing_key,
        redelivered=True,
    )
    if isinstance(decoded, Malformed):
        return Envelope(
            message=message,
            data=message.body,
            exchange=message.exchange,
            routing_key=message.routing_key,
            redelivered=True,
            attempt=attempt,
        )
    return replace(decoded, message=message).envelope(attempt)
