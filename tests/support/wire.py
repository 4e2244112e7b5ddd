"""Bytes on the lines to PostgreSQL and RabbitMQ by which a test finds the moment that it wants to break."""

from __future__ import annotations

STAMP_SENT = b"RELEASE SAVEPOINT"
"""In the call that ends an attempt with its receipt: from here on to its end, COMMIT included."""

STAMP_ANSWERED = b"RELEASE\x00C\x00\x00\x00\x0bCOMMIT\x00"
"""The tags of that call's last two statements. COMMIT alone would be found in other answers too."""


CONFIRM = b"\x00\x3c\x00\x50"
"""Class and method of Basic.Ack: from the server it is a confirm."""


def publish_into(queue: str) -> bytes:
    """Return how a publish into a queue by the default exchange begins: class and method, nothing twice, the key."""
    return b"\x00\x3c\x00\x28\x00\x00\x00" + bytes((len(queue),)) + queue.encode()
