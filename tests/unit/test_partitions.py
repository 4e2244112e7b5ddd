"""Which partition comes next: contiguous from now on, whatever was made before and by whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inbox.partitions import AHEAD, covered_until, next_span, width

HOUR = timedelta(hours=1)
NOW = datetime(2026, 3, 1, 12, 34, 56, 789, UTC)
Spans = list[tuple[datetime, datetime]]


def made(spans: Spans, now: datetime, step: timedelta) -> Spans:
    """Make partitions until none is missing, and return all of them."""
    spans = list(spans)
    for _ in range(100):
        following = next_span(spans, now, step)
        if following is None:
            return spans
        spans.append(following)
    raise AssertionError("there is always one more")


def check(spans: Spans, now: datetime, step: timedelta) -> None:
    ordered = sorted(spans)
    for (lower, upper), (after, _) in pairwise(ordered):
        assert lower < upper <= after, "two partitions overlap"
    assert covered_until(spans, now) >= now + AHEAD * step, "a moment ahead has no partition"


@pytest.mark.parametrize(
    ("retention_s", "hours"), [(30 * 86_400, 240), (86_400, 8), (3 * 3600, 1), (3600, 1), (1, 1), (7 * 86_400, 56)]
)
def test_a_partition_spans_a_third_of_the_retention_in_whole_hours(retention_s: float, hours: int) -> None:
    assert width(retention_s) == timedelta(hours=hours)


def test_the_first_partition_has_begun_already_and_the_next_ones_follow_on_it() -> None:
    spans = made([], NOW, 10 * HOUR)
    assert spans[0][0] <= NOW < spans[0][1]
    assert all(upper - lower == 10 * HOUR for lower, upper in spans)
    check(spans, NOW, 10 * HOUR)


def test_nothing_is_made_as_long_as_enough_is_ahead() -> None:
    spans = made([], NOW, 10 * HOUR)
    assert next_span(spans, NOW, 10 * HOUR) is None
    assert next_span(spans, NOW + 10 * HOUR, 10 * HOUR) is not None


@pytest.mark.parametrize("factor", [0.1, 0.5, 2, 7])
def test_a_changed_retention_goes_on_where_the_last_partition_ends(factor: float) -> None:
    before = made([], NOW, 10 * HOUR)
    after = made(before, NOW + 15 * HOUR, 10 * HOUR * factor)
    assert after[: len(before)] == before
    check(after, NOW + 15 * HOUR, 10 * HOUR * factor)


def test_a_gap_is_filled_and_no_more_than_the_gap() -> None:
    spans = [(NOW - HOUR, NOW + HOUR), (NOW + 3 * HOUR, NOW + 20 * HOUR)]
    assert next_span(spans, NOW, 5 * HOUR) == (NOW + HOUR, NOW + 3 * HOUR)


def test_a_service_that_was_away_for_long_begins_anew_and_leaves_the_past_alone() -> None:
    spans = [(NOW - 100 * HOUR, NOW - 90 * HOUR)]
    assert next_span(spans, NOW, 5 * HOUR) == (NOW, NOW + 5 * HOUR)


def test_a_service_that_was_away_for_a_moment_goes_on_without_a_gap() -> None:
    spans = [(NOW - 10 * HOUR, NOW - HOUR)]
    assert next_span(spans, NOW, 5 * HOUR) == (NOW - HOUR, NOW + 4 * HOUR)


def test_what_is_covered_ends_at_the_first_gap() -> None:
    spans = [(NOW + 5 * HOUR, NOW + 9 * HOUR), (NOW - HOUR, NOW + HOUR), (NOW + HOUR, NOW + 3 * HOUR)]
    assert covered_until(spans, NOW) == NOW + 3 * HOUR
    assert covered_until(spans, NOW - 2 * HOUR) == NOW - 2 * HOUR
    assert covered_until([], NOW) == NOW


HOURS = st.integers(-50, 50)


@given(st.lists(HOURS, unique=True, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12), st.integers(1, 20))
def test_whatever_is_attached_time_ahead_becomes_covered_without_overlap(
    bounds: list[int], kept: list[bool], step: int
) -> None:
    edges = [NOW + hour * HOUR for hour in sorted(bounds)]
    spans = [span for span, keep in zip(pairwise(edges), kept, strict=False) if keep]
    assume(all(lower < upper for lower, upper in spans))
    check(made(spans, NOW, step * HOUR), NOW, step * HOUR)
