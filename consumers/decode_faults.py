"""Which property it is that the AMQP client could not decode.

The client's exception says what went wrong ("year 53840 is out of range"), not where. Senders need the name.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from consumers.fields import ARRAY, TABLE, TIMESTAMP
from consumers.properties import SHORT_STRINGS, PropertyList
from consumers.reading import shown

# The client takes what is above 2^32 for milliseconds, and a datetime ends with the year 9999.
_LAST_MILLISECOND: Final = 253_402_300_799_999

_unsigned_long_of = Struct(">Q").unpack_from


def named(fault: Exception, properties: PropertyList) -> str:
    """Return why the client could not decode a list, with the name of the property or header that it failed on."""
    cause = f"{type(fault).__name__}: {fault}"
    for name in SHORT_STRINGS:
        value = properties.text(name)
        if value is not None and not _is_utf8(value):
            return f"property {name} is not UTF-8: {shown(value)}"
    moment = properties.timestamp
    if moment is not None and moment > _LAST_MILLISECOND:
        return f"property timestamp is out of range: {moment}"
    for key, _, value_at, _ in properties.entries:
        if not _is_utf8(key):
            return f"a header's name is not UTF-8: {shown(key)}"
        kind = properties.raw[value_at]
        if kind == TIMESTAMP:
            moment = _unsigned_long_of(properties.raw, value_at + 1)[0]
            if moment > _LAST_MILLISECOND:
                return f"header {shown(key.decode())} is out of range: timestamp {moment}"
    nested = [key for key, _, value_at, _ in properties.entries if properties.raw[value_at] in (TABLE, ARRAY)]
    if len(nested) == 1:
        return f"header {shown(nested[0].decode())} cannot be decoded: {cause}"
    return f"the properties cannot be decoded: {cause}"


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
