"""The orders that the demo's shop places, and in which sequence their copies are published.

The book follows from the number of orders alone: the shop's process and the demo that counts afterwards both make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

SECOND_COPY_AFTER = 150
"""Publishes between an order and its next copy: by then the first one is usually done, or had its trouble."""


class Bug(str, Enum):
    """What a bug of the handler's does with an order, at each call."""

    RAISES = "raises"
    KILLS = "kills"  # the whole process, as the kernel does when memory runs out


_HIT = {10: Bug.RAISES, 28: Bug.RAISES, 46: Bug.KILLS}
"""The orders that the bug is met with, by number: early ones, published among all the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order, published as one CloudEvent or more with the same id.

    :param copies: how often it is published, one after another.
    :param raced: it is published once more, at the same time as the first copy.
    :param fails_once: its handler fails at the first call.
    :param bug: what the bug in the handler's first release does with it.
    :param structured: the event is one JSON document; otherwise its attributes are headers.
    """

    number: int
    copies: int
    raced: bool
    fails_once: bool
    bug: Bug | None
    structured: bool

    @property
    def id(self) -> str:
        """The order's id, and that of its event."""
        return f"order-{self.number:05}"

    @property
    def published(self) -> int:
        """How many copies there are in all."""
        return self.copies + self.raced


@dataclass(frozen=True, slots=True)
class Publish:
    """One step of the shop: one copy of an order, or two at once."""

    order: Order
    at_once: int


def order_book(count: int) -> list[Order]:
    """Return the orders: of 3,000, 300 are published twice, 60 three times, 120 raced; 273 fail once, 3 hit the bug."""
    return [
        Order(
            number=number,
            copies=2 if number % 10 == 0 else 3 if number % 50 == 5 else 1,
            raced=number % 25 == 7,
            fails_once=number % 11 == 3,
            bug=_HIT.get(number),
            structured=number % 7 == 0,
        )
        for number in range(count)
    ]


def publishes(orders: Sequence[Order]) -> list[Publish]:
    """Return what the shop does, in order: every order's first copy in turn, later copies some way behind it."""
    steps = [
        (order.number + later * SECOND_COPY_AFTER, Publish(order, 2 if order.raced and later == 0 else 1))
        for order in orders
        for later in range(order.copies)
    ]
    return [step for _, step in sorted(steps, key=lambda placed: placed[0])]
