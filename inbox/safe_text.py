"""Text that PostgreSQL stores, made from text that it would refuse.

PostgreSQL text holds neither NUL nor surrogates, and an error text can be of any size. What is stored *about* a
message must never be the reason why the message cannot be recorded. And an error may quote the URL of whatever it
failed to reach, whose password is for nobody who reads the table.
"""

from __future__ import annotations

import traceback

from inbox.redaction import without_secrets

MAX_ERROR_TEXT = 4_000
MAX_ERROR_TRACE = 8_000
MAX_NAME_TEXT = 500
MAX_OF_GROUP = 10
_MAX_FRAMES = 40
_MAX_SEARCHED = 4 * MAX_ERROR_TRACE
_CUT_WORD = 2_000
"""Characters of the word in which a text is cut that go too: a secret of which a part is missing is not seen as one."""


def safe(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Return the text with NUL and surrogates made visible, cut to `limit` characters."""
    # Cut twice: before, so that no huge text is worked on; after, since what is made visible grows.
    visible = text[: limit + 1].replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


def harmless(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Return the text as `safe` does, and without secrets."""
    if len(text) > _MAX_SEARCHED:
        text = (
            text[: _MAX_SEARCHED - _CUT_WORD]
            + _without_last_word(text[_MAX_SEARCHED - _CUT_WORD : _MAX_SEARCHED])
            + "…"
        )
    return safe(without_secrets(text), limit)


def error_class(error: BaseException) -> str:
    """Return the qualified class of an error, as operators search for it."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    return safe(name, MAX_NAME_TEXT)


def error_text(error: BaseException) -> str:
    """Return what an error says, and what those in a group say; one whose own `__str__` fails still gets recorded."""
    if isinstance(error, BaseExceptionGroup):
        inner = "; ".join(f"{error_class(each)}: {error_text(each)}" for each in error.exceptions[:MAX_OF_GROUP])
        return harmless(f"{_said(error)}: {inner}")
    return harmless(_said(error))


def error_trace(error: BaseException) -> str | None:
    """Return an error's traceback, causes included; its end, where the error itself stands, if it is long."""
    if error.__traceback__ is None:
        return None
    try:
        traced = "".join(traceback.format_exception(error, limit=-_MAX_FRAMES))
    except Exception as broken:
        traced = f"(this traceback cannot be printed: {type(broken).__name__})"
    if len(traced) > _MAX_SEARCHED:
        cut = len(traced) - _MAX_SEARCHED
        traced = "…" + _without_first_word(traced[cut : cut + _CUT_WORD]) + traced[cut + _CUT_WORD :]
    traced = without_secrets(traced)
    if len(traced) > MAX_ERROR_TRACE:
        traced = "…" + traced[1 - MAX_ERROR_TRACE :]
    return safe(traced, MAX_ERROR_TRACE)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"(this error cannot be printed: {type(broken).__name__})"


def _without_last_word(text: str) -> str:
    words = text.rsplit(maxsplit=1)
    return words[0] if len(words) == 2 else ""


def _without_first_word(text: str) -> str:
    words = text.split(maxsplit=1)
    return words[1] if len(words) == 2 else ""
