"""Sizes as people write them: "64KiB", "16MiB", "1GiB"; a bare number is bytes."""

from __future__ import annotations

import re
from typing import ClassVar

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


class Size(int):
    """How many bytes of one message may be on record; written as "16MiB", or in bytes."""

    allowed: ClassVar[str] = 'a size from 256KiB to 256MiB, such as "16MiB"'

    @classmethod
    def read(cls, written: object) -> Size:
        """Return a written size.

        :raises ValueError: it is not a size, or not an allowed one.
        """
        value = cls(written if isinstance(written, int) and not isinstance(written, bool) else _bytes_of(written))
        value.check()
        return value

    def check(self) -> None:
        """Raise ValueError if this value is not allowed."""
        # What is kept of a message that is too large, a prefix and a header frame, has to be smaller. And a dump of the
        # database writes each byte as two digits, into a row of at most 1 GB.
        if not 256 * 2**10 <= self <= 256 * 2**20:
            raise ValueError("it must be from 256KiB to 256MiB")


def text(size: int) -> str:
    """Return the shortest exact form of a size: "16MiB" for 16,777,216."""
    for unit, factor in reversed(_UNITS.items()):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return "0B"


def _bytes_of(written: object) -> int:
    # Said without the text itself, except where it is a number and a unit: what stands there may be a misplaced URL.
    match = _FORM.fullmatch(written.strip()) if isinstance(written, str) else None
    if match is None:
        raise ValueError("it is not a size: a number and one of B, KiB, MiB, GiB")
    number, unit = match.groups()
    if unit not in _UNITS:
        meant = {"k": "KiB", "m": "MiB", "g": "GiB", "b": "B"}.get(unit[0].lower()) if len(unit) <= 3 else None
        suggestion = f'; did you mean "{number}{meant}"?' if meant else ": one of B, KiB, MiB, GiB"
        raise ValueError(f"it has a unit that is not known{suggestion}")
    value = float(number) * _UNITS[unit]
    if not value.is_integer():
        raise ValueError("it is not a whole number of bytes")
    return int(value)
