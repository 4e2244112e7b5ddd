"""Pauses: each thing has its own, they double, and what nobody asks for any more is forgotten."""

from __future__ import annotations

from consumers.pauses import Pauses


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[Pauses[str], Clock]:
    clock = Clock()
    return Pauses(first_s=1.0, longest_s=300.0, clock=clock), clock


def test_what_has_not_failed_has_no_pause() -> None:
    pauses, _ = made()
    assert not pauses.on("a")
    assert "a" not in pauses


def test_a_pause_is_over_when_its_time_is_up_and_the_next_one_is_longer() -> None:
    pauses, clock = made()
    for number in range(12):
        longest_s = min(2.0**number, 300.0)
        pause_s = pauses.begin("a")
        assert longest_s / 2 <= pause_s <= longest_s
        assert pauses.on("a")
        clock.now += pause_s
        assert not pauses.on("a")
        assert "a" in pauses


def test_each_thing_pauses_by_itself() -> None:
    pauses, clock = made()
    for _ in range(6):
        pauses.begin("a")
    clock.now += pauses.begin("b")
    assert pauses.on("a")
    assert not pauses.on("b")


def test_after_it_was_done_its_pauses_are_short_again() -> None:
    pauses, _ = made()
    for _ in range(8):
        pauses.begin("a")
    pauses.end("a")
    assert "a" not in pauses
    assert not pauses.on("a")
    assert pauses.begin("a") <= 1.0
    pauses.end("never failed")


def test_what_is_not_tried_again_is_forgotten_and_what_still_pauses_is_not() -> None:
    pauses, clock = made()
    pauses.begin("gone")
    clock.now += 299.0
    pauses.forget()
    assert "gone" in pauses
    pauses.begin("here")
    clock.now += 2.0
    pauses.forget()
    assert "gone" not in pauses
    assert len(pauses) == 1
