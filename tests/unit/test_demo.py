"""The demo's own parts: what its shop publishes, what it counts, and what it calls wrong."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from uuid import uuid4

import pytest

import inbox
from consumers.codec import Decoded, decode
from consumers.config import parse
from consumers.plan import plan
from deadlines import RunFailed, until
from demo_parts.exhaustions import Exhaustions
from demo_parts.figures import Figures, complaints
from demo_parts.order_book import Bug, Order, order_book, publishes
from demo_parts.shop import binary, structured
from demo_parts.witness import Evidence, OrderTrouble, Witness, killer
from foreign_client import DeadLetter
from tests.support.servers import CHECKOUT

NO_CALLS = Evidence(calls=0, redeliveries=0, failures=0, on_purpose=0, cut_off=0, replayed=frozenset())
LETTER = DeadLetter(body=b'{"id": "b"}', key="key of b", generation=1)
REPLAYED = Exhaustions(hit={"b"}, rows={"key of b": "b"}, letters=[LETTER], replayed={"b"})


def test_of_3000_orders_a_tenth_is_published_twice_and_some_three_times_or_at_once() -> None:
    orders = order_book(3000)

    assert Counter(order.copies for order in orders) == {1: 2640, 2: 300, 3: 60}
    assert sum(order.raced for order in orders) == 120
    assert sum(order.fails_once for order in orders) == 273
    assert {order.structured for order in orders if order.raced} == {True, False}
    assert {order.fails_once for order in orders if order.copies > 1} == {True, False}


def test_three_orders_hit_the_bug_and_one_of_them_kills_its_process_in_the_smallest_book_too() -> None:
    hit = [order for order in order_book(100) if order.bug is not None]

    assert sorted(order.bug for order in hit) == [Bug.KILLS, Bug.RAISES, Bug.RAISES]
    assert not any(order.fails_once for order in hit)
    assert {order.copies > 1 for order in hit} == {True, False}
    assert [order for order in order_book(3000) if order.bug is not None] == hit


def test_the_shop_publishes_every_copy_of_every_order() -> None:
    orders = order_book(500)

    published: Counter[str] = Counter()
    for step in publishes(orders):
        published[step.order.id] += step.at_once

    assert published == {order.id: order.published for order in orders}


def test_later_copies_come_some_way_behind_the_first() -> None:
    steps = [step.order.number for step in publishes(order_book(3000))]

    places = [place for place, number in enumerate(steps) if number == 5]

    assert len(places) == 3
    assert min(later - earlier for earlier, later in itertools.pairwise(places)) >= 150


@pytest.mark.parametrize("mode", [binary, structured])
def test_both_modes_of_the_shops_events_are_the_same_message(mode: object) -> None:
    order = Order(number=12, copies=1, raced=False, fails_once=True, bug=Bug.KILLS, structured=mode is structured)
    body, properties = structured(order) if mode is structured else binary(order)

    decoded = decode(
        consumer="orders",
        queue="q",
        body=body,
        properties=b"".join(properties.encode()),
        fault=None,
        exchange="",
        routing_key="q",
        redelivered=False,
    )

    assert isinstance(decoded, Decoded)
    message = decoded.message
    assert (message.message_id, message.source, message.type) == ("order-00012", "/shop", "order.placed")
    envelope = decoded.envelope(inbox.Attempt(1, 1, uuid4()))
    assert envelope.decode(dict) == {
        "id": "order-00012", "customer": "customer-12", "cents": 112, "fails_once": True, "bug": "kills",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("file", "handler"),
    [
        ("examples/orders/fleet.toml", ""),
        ("scripts/demo_parts/fleet.toml", "demo_parts.service:first_release"),
        ("scripts/demo_parts/fleet.toml", "demo_parts.service:fixed_release"),
    ],
)
def test_the_configurations_fit_their_handlers(file: str, handler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "examples"))
    template = Template((CHECKOUT / file).read_text())
    text = template.safe_substitute(service="demo-0", queue="demo-0.orders", handler=handler)

    planned = plan(parse(text, file=file))

    assert list(planned.consumers) == ["orders"]
    assert list(planned.consumers["orders"].consumer.handlers) == ["order.placed"]


def figures(effects: Mapping[str, int]) -> Figures:
    """The figures of four copies of three orders."""
    return Figures.count(
        published=4,
        orders={"a", "b", "c"},
        effects=effects,
        letters=[LETTER],
        evidence=replace(NO_CALLS, replayed=frozenset("b")),
        seconds=1.0,
    )


def test_one_effect_each_and_empty_queues_is_nothing_to_complain_of() -> None:
    found = figures({"a": 1, "b": 1, "c": 1})

    assert (found.lost, found.doubled, found.duplicates_absorbed) == (0, 0, 1)
    assert (found.exhausted, found.replayed) == (1, 1)
    assert complaints(found, exhaustions=REPLAYED, left={"work": 0, "parked": 0}, exit_codes={"process 1": 0}) == []


def test_an_order_without_effect_is_lost_also_when_the_number_of_effects_is_right() -> None:
    found = figures({"a": 2, "b": 1})

    assert (found.effects, found.lost, found.doubled) == (3, 1, 1)
    assert [line.split(":")[0] for line in complaints(found, exhaustions=REPLAYED, left={}, exit_codes={})] == [
        "1 of 3 orders are lost",
        "1 effects are doubled",
    ]


def test_what_is_left_in_a_queue_and_an_exit_code_are_complained_of() -> None:
    found = complaints(
        figures({"a": 1, "b": 1, "c": 1}),
        exhaustions=REPLAYED,
        left={"work": 0, "parked": 2},
        exit_codes={"process 1": 0, "process 2": -9},
    )

    assert found == ["2 messages are left in queue parked", "process 2 stopped with exit code -9 instead of 0"]


def test_a_dead_letter_that_came_twice_is_one_end() -> None:
    assert replace(REPLAYED, letters=[LETTER, LETTER]).complaints() == []


@pytest.mark.parametrize(
    ("letters", "replayed", "found"),
    [
        ([], {"b"}, ["the bug was met with b, and no dead letter names it"]),
        ([LETTER], set(), ["exhausted, and not tried again by a replay: b"]),
        ([LETTER, replace(LETTER, generation=2)], {"b"}, ["exhausted again after fix and replay: b"]),
        ([replace(LETTER, key="another")], {"b"}, ["dead letters do not name the row of their order: b"]),
        (
            [LETTER, DeadLetter(body=b'{"id": "a"}', key="key of a", generation=1)],
            {"a", "b"},
            ["exhausted without having met the bug: a", "dead letters do not name the row of their order: a"],
        ),
    ],
)
def test_an_end_that_was_not_to_be_is_complained_of(
    letters: Sequence[DeadLetter], replayed: set[str], found: list[str]
) -> None:
    assert replace(REPLAYED, letters=letters, replayed=replayed).complaints() == found


def envelope(message_id: str, *, redelivered: bool = False, generation: int = 1) -> inbox.Envelope:
    return inbox.Envelope(
        message=inbox.Message(
            key=inbox.message_key("orders", "/shop", message_id),
            consumer="orders",
            source="/shop",
            message_id=message_id,
            type="order.placed",
            body=b"{}",
            properties=b"",
            exchange="",
            routing_key="q",
        ),
        data=b"{}",
        exchange="",
        routing_key="q",
        redelivered=redelivered,
        attempt=inbox.Attempt(1, generation, uuid4()),
    )


def test_two_witnesses_give_one_evidence(tmp_path: Path) -> None:
    with Witness(tmp_path) as first, Witness(tmp_path) as second:
        with first.call(envelope("a")):
            pass
        with pytest.raises(OrderTrouble), second.call(envelope("b")):
            raise OrderTrouble
        with second.call(envelope("b", redelivered=True)):
            pass
        with pytest.raises(ConnectionError), first.call(envelope("c")):
            raise ConnectionError
        with first.call(envelope("b", generation=2)):
            pass
        with first.call(envelope("d")):
            evidence = Evidence.read(tmp_path)  # as a process that is killed now would leave it

    assert evidence == Evidence(calls=6, redeliveries=1, failures=2, on_purpose=1, cut_off=1, replayed=frozenset("b"))


def test_a_message_that_kills_its_process_says_so_first(tmp_path: Path) -> None:
    assert killer(tmp_path, os.getpid()) is None

    with Witness(tmp_path) as witness:
        witness.kills(envelope("a"))

    assert killer(tmp_path, os.getpid()) == "a"
    assert killer(tmp_path, os.getpid() + 1) is None


def test_a_first_call_is_first_once_whoever_asks(tmp_path: Path) -> None:
    with Witness(tmp_path) as one, Witness(tmp_path) as other:
        assert [one.is_first_call(envelope("a")), other.is_first_call(envelope("a"))] == [True, False]
        assert other.is_first_call(envelope("b"))


async def test_a_wait_ends_and_says_what_it_waited_for() -> None:
    with pytest.raises(RunFailed, match=r"waited 0\.02 s in vain for the moon"):
        await until(lambda: False, within_s=0.02, every_s=0.001, what=lambda: "the moon")


async def test_a_wait_goes_on_while_something_moves() -> None:
    asked = 0

    def fact() -> bool:
        nonlocal asked
        asked += 1
        return asked == 40

    # Without the movement it would end after the third question or so.
    await until(fact, within_s=0.02, every_s=0.01, what=lambda: "the fortieth question", moving=lambda: asked)

    assert asked == 40
