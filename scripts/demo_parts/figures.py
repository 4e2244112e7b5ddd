"""What the run comes to: the figures, and everything in them that must not be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass

from demo_parts.exhaustions import Exhaustions, order_in
from demo_parts.witness import Evidence
from foreign_client import DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one run, named as in its JSON.

    :param published: copies that the broker confirmed to the shop.
    :param unique: different orders among them.
    :param effects: rows in the service's table.
    :param duplicates_absorbed: copies that had no effect, which is right once the queues are empty.
    :param redeliveries: calls of the handler for a delivery that was not the first one.
    :param failures: calls of the handler that ended in an exception.
    :param exhausted: orders that a dead letter names.
    :param replayed: orders that the handler was called with anew, in a generation after their first one.
    :param lost: orders without an effect.
    :param doubled: effects beyond the first one of their order.
    :param seconds: from the first step after the servers' start to the last count.
    """

    published: int
    unique: int
    effects: int
    duplicates_absorbed: int
    redeliveries: int
    failures: int
    exhausted: int
    replayed: int
    lost: int
    doubled: int
    seconds: float

    @classmethod
    def count(
        cls, *, published: int, orders: Set[str], effects: Mapping[str, int], letters: Sequence[DeadLetter],
        evidence: Evidence, seconds: float,
    ) -> Figures:  # fmt: skip
        """Work them out.

        Args:
            published: Confirmed copies.
            orders: Ids of the orders that they are copies of.
            effects: Number of effects by order id.
            letters: What the dead-letter queue holds.
            evidence: What the handler wrote down.
            seconds: How long it took.
        """
        total = sum(effects.values())
        return cls(
            published=published,
            unique=len(orders),
            effects=total,
            duplicates_absorbed=published - total,
            redeliveries=evidence.redeliveries,
            failures=evidence.failures,
            exhausted=len({order_in(letter) for letter in letters}),
            replayed=len(evidence.replayed),
            lost=len(orders - effects.keys()),
            doubled=total - len(effects),
            seconds=round(seconds, 1),
        )

    def json(self) -> str:
        """Return them as one JSON object on one line."""
        return json.dumps(asdict(self))


def complaints(
    figures: Figures, *, exhaustions: Exhaustions, left: Mapping[str, int], exit_codes: Mapping[str, int]
) -> list[str]:
    """Return what is wrong, one sentence each; nothing if each order has exactly one effect and nothing is left.

    Args:
        figures: The run's figures.
        exhaustions: What has become of the orders that the bug was met with.
        left: Messages in each queue after the fleet has stopped, dead letters apart.
        exit_codes: How each process of the fleet ended.
    """
    found = []
    if figures.lost:
        found.append(
            f"{figures.lost:,} of {figures.unique:,} orders are lost: published and confirmed, and without effect"
        )
    if figures.doubled:
        found.append(f"{figures.doubled:,} effects are doubled: their order has one already")
    found += exhaustions.complaints()
    found += [f"{count} messages are left in queue {queue}" for queue, count in left.items() if count]
    found += [f"{name} stopped with exit code {code} instead of 0" for name, code in exit_codes.items() if code]
    return found
