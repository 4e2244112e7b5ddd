"""Turn whatever stands in a log call into values that can be written: no secrets, no bodies, no endless text.

Bytes are counted, never shown: a body may be in them. Objects are described by their own repr, which may fail; that
failure is described too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from enum import Enum
from itertools import islice
from typing import Any, TypeAlias
from uuid import UUID

from inbox.envelope import Envelope, ExhaustionRecord, Message
from inbox.redaction import HIDDEN, without_secrets

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

MAX_TEXT = 8 * 1024
"""Characters of one value. The end of a longer one is kept as well: a traceback says the most there."""

MAX_SCANNED = 256 * 1024
"""Characters that are searched for secrets. Longer text is only counted: a secret may stand where it would be cut."""

MAX_DEPTH = 5
MAX_ITEMS = 64

_SECRET_KEYS = frozenset({"authorization", "passwd", "password", "secret", "token"})


def plain(value: object, *, depth: int = 0) -> Plain:
    """Return a value that JSON can hold, whatever is passed in. Never raises an `Exception`."""
    try:
        return _plain(value, depth)
    except Exception as fault:
        return f"<unwritable {type(value).__name__}: {type(fault).__name__}>"


def fields(facts: Mapping[Any, object], *, depth: int = 0) -> dict[str, Plain]:
    """Return facts by name, every value plain. Values whose name says that they are a secret are hidden."""
    written: dict[str, Plain] = {}
    for key, value in islice(facts.items(), MAX_ITEMS):
        name = key if type(key) is str else text(_described(key))
        if not name.isascii():
            name = text(name)
        kind = type(value)
        if name.lower() in _SECRET_KEYS and value is not None:
            written[name] = HIDDEN
        elif kind is str:
            written[name] = text(value)  # type: ignore[arg-type]  # told by its exact type
        elif value is None or kind is bool:
            written[name] = value  # type: ignore[assignment]  # told by its exact type
        else:
            written[name] = plain(value, depth=depth)
    if len(facts) > MAX_ITEMS:
        written["left_out"] = len(facts) - MAX_ITEMS
    return written


def text(value: str) -> str:
    """Return text that UTF-8 can hold, without passwords, of bounded length."""
    if not value.isascii():
        value = value.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(value) > MAX_SCANNED:
        return f"<{len(value)} characters>"
    value = without_secrets(value)
    if len(value) > MAX_TEXT:
        half = MAX_TEXT // 2
        value = f"{value[:half]} … {len(value) - MAX_TEXT} characters left out … {value[-half:]}"
    return value


def _plain(value: object, depth: int) -> Plain:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(str.__str__(value))
    if isinstance(value, int):
        # Readers of JSON keep 53 bits, some writers 64: a longer number is text.
        return int(value) if -(2**63) <= value < 2**63 else text(_digits(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{memoryview(value).nbytes} bytes>"
    if isinstance(value, (UUID, datetime, date)):
        return str(value)
    if isinstance(value, ExhaustionRecord):
        value = value.envelope
    if isinstance(value, Envelope):
        value = value.message
    if isinstance(value, Message):
        return {"message_id": text(value.message_id), "type": text(value.type), "consumer": text(value.consumer)}
    if isinstance(value, BaseException):
        return text(f"{type(value).__name__}: {value}")
    if isinstance(value, Mapping):
        return fields(value, depth=depth + 1) if depth < MAX_DEPTH else f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, (list, tuple, set, frozenset)):
        return _items(value, depth + 1) if depth < MAX_DEPTH else f"<{type(value).__name__} of {len(value)}>"
    return text(_described(value))


def _items(values: Iterable[object], depth: int) -> list[Plain]:
    found = [plain(value, depth=depth) for value in islice(values, MAX_ITEMS + 1)]
    if len(found) > MAX_ITEMS:
        found[MAX_ITEMS] = "…"
    return found


def _described(value: object) -> str:
    described = repr(value)
    return described if isinstance(described, str) else f"<{type(value).__name__}>"


def _digits(value: int) -> str:
    # Python refuses to write more than some 4,300 decimal digits; hexadecimal has no such limit and costs linear time.
    return str(value) if value.bit_length() < 4096 else f"<an integer of {value.bit_length()} bits>"
