"""The bound of a consumer's unfinished messages: it closes at the number, and opens when some room has been made."""

from __future__ import annotations

from inbox import Bound


def bound(number: int, max_open: int = 100) -> Bound:
    made = Bound("billing", max_open)
    made.counted(number, known_before=0)
    return made


def test_a_consumer_begins_messages_until_the_bound_is_reached() -> None:
    assert bound(99).may_begin()
    assert not bound(100).may_begin()
    assert Bound("billing", 1).may_begin()  # before anything was counted


def test_it_begins_others_again_when_there_is_some_room_and_not_before() -> None:
    one = bound(100)
    one.counted(95, known_before=0)
    assert not one.may_begin()
    one.counted(94, known_before=0)
    assert one.may_begin()


def test_what_this_process_has_added_since_the_last_count_is_known_at_once() -> None:
    one = bound(98)
    one.added()
    assert one.may_begin()
    one.added()
    assert not one.may_begin()


def test_what_is_added_during_a_count_is_not_forgotten_by_it() -> None:
    one = bound(90)
    one.added()
    known = one.begin_count()
    for _ in range(9):
        one.added()
    assert not one.may_begin()
    one.counted(91, known_before=known)
    assert not one.may_begin()
    one.counted(91, known_before=one.begin_count())
    assert one.may_begin()


def test_a_full_consumer_says_so_with_its_numbers() -> None:
    assert bound(1).note() is None
    note = bound(100).note()
    assert note is not None and "100 unfinished messages" in note and "max_open = 100" in note
