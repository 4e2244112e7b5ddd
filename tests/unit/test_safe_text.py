"""Text that can always be stored, whatever it was made from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbox.safe_text import (
    MAX_ERROR_TEXT,
    MAX_ERROR_TRACE,
    MAX_NAME_TEXT,
    error_class,
    error_text,
    error_trace,
    harmless,
    safe,
)

ANY_TEXT = st.text(st.characters(codec=None, categories=None) | st.characters(min_codepoint=0, max_codepoint=0x10FFFF))


@given(ANY_TEXT, st.integers(min_value=1, max_value=40))
def test_any_text_becomes_storable_and_stays_within_its_limit(text: str, limit: int) -> None:
    stored = safe(text, limit)
    assert "\x00" not in stored
    assert stored.encode("utf-8").decode("utf-8") == stored
    assert len(stored) <= limit


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=MAX_ERROR_TEXT))
def test_a_text_that_can_be_stored_is_not_changed(text: str) -> None:
    assert safe(text) == text


def test_nul_and_surrogates_are_made_visible() -> None:
    assert safe("a\x00b\ud800c") == "a\\x00b\\ud800c"


def test_a_cut_is_visible_too() -> None:
    assert safe("x" * 501, MAX_NAME_TEXT) == "x" * 499 + "…"
    assert safe("x" * 500, MAX_NAME_TEXT) == "x" * 500
    assert len(safe("\ud800" * 10_000, MAX_NAME_TEXT)) == MAX_NAME_TEXT


def test_the_text_of_an_error_is_what_it_says() -> None:
    assert error_text(ValueError("no\x00good")) == "no\\x00good"


def test_an_error_that_cannot_be_printed_still_has_a_text() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("I have no words")

    class Wrong(Exception):
        def __str__(self) -> str:
            return 7  # type: ignore[return-value]

    assert error_text(Mute()) == "(this error cannot be printed: RuntimeError)"
    assert error_text(Wrong()) == "(this error cannot be printed: TypeError)"


def test_the_class_of_an_error_is_qualified_unless_it_is_builtin() -> None:
    class Local(Exception):
        pass

    assert error_class(ValueError()) == "ValueError"
    assert error_class(Local()).endswith(".Local")
    assert error_class(Local()).startswith(__name__)


def test_a_class_with_an_impossible_name_is_stored_too() -> None:
    odd = type("Odd", (Exception,), {})
    odd.__qualname__ = "Odd\x00\ud800"
    assert "\\x00\\ud800" in error_class(odd())


URL = "postgresql://app:hunter2@db.example:5432/billing"


def test_the_text_of_an_error_quotes_a_url_without_its_password() -> None:
    assert error_text(ConnectionError(f"cannot reach {URL}")) == (
        "cannot reach postgresql://app:***@db.example:5432/billing"
    )
    group = ExceptionGroup("both failed", [OSError(URL), OSError("password=hunter2")])
    assert "hunter2" not in error_text(group)


def test_the_trace_of_an_error_and_of_its_cause_quotes_a_url_without_its_password() -> None:
    try:
        try:
            raise OSError(f"no route to {URL}")
        except OSError as cause:
            raise RuntimeError("not sent") from cause
    except RuntimeError as error:
        trace = error_trace(error)
    assert trace is not None
    assert "no route to postgresql://app:***@db.example" in trace
    assert "hunter2" not in trace


@pytest.mark.parametrize("padding", [*range(MAX_ERROR_TEXT - 60, MAX_ERROR_TEXT), *range(31_940, 32_001)])
def test_a_password_that_stands_where_a_text_is_cut_is_not_kept(padding: int) -> None:
    assert "hunter" not in harmless(f"{'x' * (padding - 1)} {URL} {'y' * 100}")
    assert "hunter" not in harmless(f"{URL} " * (padding // len(URL)))


@pytest.mark.parametrize("padding", [*range(MAX_ERROR_TRACE - 120, MAX_ERROR_TRACE), *range(31_880, 32_001)])
def test_a_password_that_stands_where_a_trace_is_cut_is_not_kept(padding: int) -> None:
    try:
        raise OSError(f"{URL} {'y' * padding}")
    except OSError as error:
        trace = error_trace(error)
    assert trace is not None
    assert len(trace) <= MAX_ERROR_TRACE
    assert "hunter" not in trace
    assert "unter2" not in trace
