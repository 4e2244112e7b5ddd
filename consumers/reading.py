"""What has been read of one message, and the first thing that is wrong with it.

Reading goes on behind a problem: a message that must be refused for its type or its time is still recorded under its
own id, so that its duplicates are recognised. Nothing here raises on content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

MAX_ID_BYTES: Final = 255
MAX_SOURCE_BYTES: Final = 1024
MAX_TYPE_BYTES: Final = 255
MAX_SHOWN: Final = 80

_NONE: Mapping[str, Any] = MappingProxyType({})

_LEAP_SECOND = re.compile(r"(T\d\d:\d\d:)60")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


class Reading(msgspec.Struct):
    """One message as far as it has been read.

    :param message_id: empty if there is none that can be used; so is `source` if `has_source` is False.
    :param problem: the first reason to refuse the message, None if there is none.
    """

    message_id: str = ""
    source: str = ""
    has_source: bool = False
    type: str = ""
    data: bytes = b""
    content_type: str | None = None
    subject: str | None = None
    time: datetime | None = None
    traceparent: str | None = None
    problem: str | None = None
    attributes: Mapping[str, Any] = _NONE

    def refuse(self, problem: str) -> None:
        """Note a reason to refuse the message; the first one stays."""
        if self.problem is None:
            self.problem = problem

    def text(self, name: str, value: object, limit: int) -> str:
        """Return a value as text that PostgreSQL stores, or note why it is none and return "".

        :param name: as senders know it, for the reason.
        :param value: text, bytes that should be UTF-8, None if it is missing, or anything that a sender put there.
        :param limit: of its UTF-8 form, in bytes.
        """
        if value is None:
            problem = "is missing"
        elif not isinstance(value, (str, bytes)):
            problem = f"is not text but {shown(value)}"
        elif not value:
            problem = "is empty"
        else:
            try:
                text = value.decode() if isinstance(value, bytes) else value
                size = len(value) if isinstance(value, bytes) else len(value.encode())
            except UnicodeDecodeError:
                problem = f"is not UTF-8: {shown(value)}"
            except UnicodeEncodeError:
                problem = "holds half of a surrogate pair"
            else:
                if size > limit:
                    problem = f"is {size} bytes long, and {limit} is the limit"
                elif "\x00" in text:
                    problem = "holds NUL, which PostgreSQL text cannot"
                else:
                    return text
        self.refuse(f"{name} {problem}")
        return ""

    def identity(self, name: str, value: object) -> str:
        """Return a message id, or note why it is none and return "".

        One of blanks alone is as good as none: a sender that does not fill it gives it to every message, and all but
        the first would be taken for duplicates.
        """
        text = self.text(name, value, MAX_ID_BYTES)
        if text.isspace():
            self.refuse(f"{name} is blank")
            return ""
        return text

    def optional_text(self, name: str, value: object, limit: int = MAX_SOURCE_BYTES) -> str | None:
        """Return a value as text; None if it is missing or empty, or note why it is none."""
        if value is None or value == "" or value == b"":
            return None
        return self.text(name, value, limit) or None


def timestamp_of(text: str) -> datetime | None:
    """Return the moment that an RFC 3339 timestamp names, or None if it is none.

    A timestamp without an offset is taken as UTC, and a leap second as the second before it.
    """
    for candidate in (text, _LEAP_SECOND.sub(r"\g<1>59", text.upper())):
        try:
            moment = datetime.fromisoformat(candidate)
        except ValueError:
            continue
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None


def traceparent_of(value: object) -> str | None:
    """Return a W3C trace context, or None if the value is none: a sender's context is never a reason to refuse."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


def shown(value: object) -> str:
    """Return a value as it may stand in a reason: printable, and short whatever it was."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a table"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number"
    if isinstance(value, (bytes, str)):
        value = value[: MAX_SHOWN + 1]
    text = ascii(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
