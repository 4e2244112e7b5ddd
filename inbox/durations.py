"""Durations as people write them: "250ms", "5s", "1.5m", "2h", "10d"; a bare number is seconds."""

from __future__ import annotations

import math
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")


def seconds(duration: float | int | str) -> float:
    """Return a duration in seconds.

    :param duration: a number of seconds, or text made of a number and one of ms, s, m, h, d.
    :raises ValueError: it is negative, not finite, or not of that form.
    """
    if isinstance(duration, bool):
        raise ValueError(f'{duration!r} is not a duration: write a number and a unit, such as "30s"')  # noqa: TRY004
    if isinstance(duration, (int, float)):
        value = float(duration)
    else:
        match = _FORM.fullmatch(duration.strip())
        if match is None:
            raise ValueError(f'{duration!r} is not a duration: write a number and one of ms, s, m, h, d, such as "30s"')
        value = float(match[1]) * _UNITS[match[2]]
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{duration!r} is not a duration: it must be zero or more, and finite")
    return value


def text(value_s: float) -> str:
    """Return the shortest exact form of seconds, as it stands in queue names: "5s" for 5.0, "250ms", "5m"."""
    millis = round(value_s * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if millis and millis % size == 0:
            return f"{millis // size}{unit}"
    return f"{millis}ms" if millis else "0s"
