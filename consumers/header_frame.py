"""A property list on its way out: the client sends the bytes as they are, and never a header frame that kills.

A content header must fit into one frame. The broker answers a larger one by closing the connection with every channel
on it, and the client does not check.
"""

from __future__ import annotations

from typing import Final

from pamqp import commands

from consumers.errors import HeadersTooLarge
from consumers.properties import PropertyList

DEFAULT_FRAME_MAX: Final = 131_072
"""What RabbitMQ proposes, in bytes."""

_CLASS_WEIGHT_AND_BODY_SIZE: Final = 12
_FRAME_OVERHEAD: Final = 8


def header_frame_size(properties: bytes) -> int:
    """Return the payload of the header frame that carries a property list, in bytes."""
    return _CLASS_WEIGHT_AND_BODY_SIZE + len(properties)


def fits_header_frame(properties: bytes, frame_max: int = DEFAULT_FRAME_MAX) -> bool:
    """Return whether a property list fits into one frame.

    :param frame_max: negotiated with the broker, in bytes; 0 for no limit.
    """
    return not frame_max or header_frame_size(properties) <= frame_max - _FRAME_OVERHEAD


def check_header_frame(properties: bytes, frame_max: int = DEFAULT_FRAME_MAX) -> None:
    """Make sure that a property list fits into one frame.

    :param frame_max: negotiated with the broker, in bytes; 0 for no limit.
    :raises HeadersTooLarge: it does not; publishing it would cost the connection.
    """
    if not fits_header_frame(properties, frame_max):
        raise HeadersTooLarge(size=header_frame_size(properties), limit=frame_max - _FRAME_OVERHEAD)


class RawProperties(commands.Basic.Properties):
    """Properties that are published as the bytes they are given as.

    Only `message_id` can be read from it. The client keeps a publish by that id and finds it again by the id on a
    returned message, so it is taken from the bytes.

    :raises MalformedProperties: the bytes are no property list.
    :raises ValueError: there is no message id: the client would make one up that no returned message carries.
    """

    def __init__(self, encoded: bytes) -> None:
        message_id = PropertyList(encoded).text("message_id")
        if not message_id:
            raise ValueError("a message without a message id cannot be published: its return could not be noticed")
        super().__init__(message_id=message_id.decode("utf-8", "surrogateescape"))
        self._encoded = encoded

    def marshal(self) -> bytes:
        """Return the property list."""
        return self._encoded
