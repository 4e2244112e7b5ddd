"""Durations as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbox.durations import seconds, text


@pytest.mark.parametrize(
    ("written", "expected_s"),
    [
        ("250ms", 0.25),
        ("5s", 5.0),
        ("0s", 0.0),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("10d", 864_000.0),
        (" 5 s ", 5.0),
        (3, 3.0),
        (0.5, 0.5),
        (0, 0.0),
    ],
)
def test_a_number_and_a_unit_are_seconds(written: float | str, expected_s: float) -> None:
    assert seconds(written) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    "written",
    ["5", "s", "", "-5s", "5S", "5 seconds", "1h30m", "1e3s", "٥s", ".5s", "5.s", -1, -0.001, math.nan, math.inf, True],
)
def test_anything_else_is_refused_by_value(written: float | str) -> None:
    with pytest.raises(ValueError, match="is not a duration") as refused:
        seconds(written)
    assert repr(written) in str(refused.value)


@pytest.mark.parametrize(
    ("value_s", "written"),
    [
        (0.0, "0s"),
        (0.25, "250ms"),
        (5.0, "5s"),
        (60.0, "1m"),
        (90.0, "90s"),
        (300.0, "5m"),
        (7200.0, "2h"),
        (86_400.0, "1d"),
        (0.0001, "0s"),
        (1.5, "1500ms"),
    ],
)
def test_seconds_are_written_in_the_largest_unit_that_is_exact(value_s: float, written: str) -> None:
    assert text(value_s) == written


@given(st.integers(min_value=0, max_value=10**12))
def test_what_is_written_reads_back(millis: int) -> None:
    assert round(seconds(text(millis / 1000)) * 1000) == millis
