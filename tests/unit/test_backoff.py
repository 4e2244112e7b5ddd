"""Pauses grow, end at their longest, and differ between processes that lost a server together."""

from __future__ import annotations

from inbox.backoff import Backoff


def pauses(count: int, *, first_s: float = 0.1, longest_s: float = 5.0) -> list[float]:
    backoff = Backoff(first_s=first_s, longest_s=longest_s)
    return [backoff.next_s() for _ in range(count)]


def test_pauses_double_up_to_the_longest() -> None:
    for number, pause_s in enumerate(pauses(12)):
        unjittered_s = min(0.1 * 2**number, 5.0)
        assert unjittered_s / 2 <= pause_s <= unjittered_s


def test_no_two_processes_come_back_at_the_same_time_not_even_after_a_long_outage() -> None:
    late = [pauses(40)[-1] for _ in range(50)]
    assert len(set(late)) == 50
    assert max(late) - min(late) > 0.5


def test_after_a_success_the_pauses_are_short_again() -> None:
    backoff = Backoff(first_s=0.1, longest_s=5.0)
    for _ in range(10):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_an_outage_of_any_length_has_a_next_pause() -> None:
    assert pauses(5_000)[-1] <= 5.0
