"""Types of single configuration values, each with the sentence that says what is allowed.

A duration is written with its unit and read into seconds, a size into bytes. `allowed(type)` is what an error message
says about a field of that type, so the rule and its wording stand in one place.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, Union, get_args, get_origin

from msgspec import Meta

from consumers.config.sizes import Size
from inbox.durations import seconds

_DAY_S = 86_400


class Seconds(float):
    """A duration above zero and up to 365 days; written as "250ms", "5s", "1.5m", "2h", "10d", or in seconds."""

    allowed: ClassVar[str] = 'a duration above zero and up to 365d, such as "250ms", "30s", "5m"'

    @classmethod
    def read(cls, written: object) -> Seconds:
        """Return a written duration.

        :raises ValueError: it is not a duration, or not an allowed one.
        """
        try:
            value = cls(seconds(written if isinstance(written, (str, int, float)) else ""))
        except ValueError:
            # Said without the text itself: what stands there may be a misplaced URL.
            raise ValueError("it is not a duration: a number and one of ms, s, m, h, d") from None
        value.check()
        return value

    def check(self) -> None:
        """Raise ValueError if this value is not allowed."""
        if not 0 < self <= 365 * _DAY_S:
            raise ValueError("it must be above zero and at most 365d")


class Step(Seconds):
    """A step of pacing: zero, which is a requeue at once, or the time to live of a parking queue."""

    allowed: ClassVar[str] = '"0s", or a duration from 100ms to 30d in whole milliseconds, such as "5s"'

    def check(self) -> None:
        """Raise ValueError if this value is not allowed."""
        if not self:
            return
        # A copy may come back some milliseconds early, and queue names carry the step in whole milliseconds.
        if not 0.1 <= self <= 30 * _DAY_S or abs(self * 1000 - round(self * 1000)) > 1e-6:
            raise ValueError("it must be 0s, or from 100ms to 30d in whole milliseconds")


Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000, description="a whole number from 1 to 1000")]
CountOrZero: TypeAlias = Annotated[int, Meta(ge=0, le=1_000, description="a whole number from 0 to 1000")]
Plenty: TypeAlias = Annotated[
    int, Meta(ge=1, le=10_000_000, description="a whole number from 1 to 10000000, without separators or with _")
]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65_535, description="a port from 1 to 65535, or 0 for any free one")]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1, description="a share above 0 and up to 1, such as 0.8")]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255, description="a text of 1 to 255 characters")]
ShortText: TypeAlias = Annotated[str, Meta(max_length=255, description="a text of at most 255 characters")]

NAME = r"\A[a-z][a-z0-9_-]{0,39}\Z"
Name: TypeAlias = Annotated[
    str,
    Meta(pattern=NAME, description="a name of up to 40 characters: a lower-case letter, then a to z, 0 to 9, - and _"),
]
Reference: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z",
        description='"module:attribute", such as "billing.handlers:invoices"',
    ),
]

_PLAIN = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def allowed(kind: Any) -> str:
    """Return what a field of this type may hold, as a phrase for an error message."""
    origin = get_origin(kind)
    if origin is Annotated:
        for extra in get_args(kind)[1:]:
            if isinstance(extra, Meta) and extra.description:
                return extra.description
        return allowed(get_args(kind)[0])
    if origin in (Union, UnionType):
        return " or ".join(allowed(part) for part in get_args(kind) if part is not NoneType)
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    if origin is tuple:
        return f"a list; each item: {allowed(get_args(kind)[0])}"
    if isinstance(origin or kind, type) and issubclass(origin or kind, (Seconds, Size)):
        return kind.allowed  # type: ignore[no-any-return]
    return _PLAIN.get(kind, "a table")
