"""What must have become of the orders that the bug was met with, and of no others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from foreign_client import DeadLetter


def order_in(letter: DeadLetter) -> str:
    """Return the id of the order that a dead letter is of, as its body says."""
    return str(json.loads(letter.body)["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustions:
    """The orders that were to end without effect at first, and those that did.

    :param hit: ids of the orders that the bug is met with.
    :param rows: the row of each exhausted order before the fix, by the row's key, as the fleet's command listed them.
    :param letters: what the dead-letter queue holds at the end.
    :param replayed: ids of the orders that the handler was called with after the replay.
    """

    hit: Set[str]
    rows: Mapping[str, str]
    letters: Sequence[DeadLetter]
    replayed: Set[str]

    def complaints(self) -> list[str]:
        """Return what is wrong with them, one sentence each."""
        found = []
        orders = {letter: order_in(letter) for letter in self.letters}
        ended = set(orders.values())
        if others := sorted(ended - self.hit):
            found.append(f"exhausted without having met the bug: {', '.join(others)}")
        if missing := sorted(self.hit - ended):
            found.append(f"the bug was met with {', '.join(missing)}, and no dead letter names it")
        if strays := sorted({order for letter, order in orders.items() if self.rows.get(letter.key) != order}):
            found.append(f"dead letters do not name the row of their order: {', '.join(strays)}")
        if again := sorted({order for letter, order in orders.items() if letter.generation > 1}):
            found.append(f"exhausted again after fix and replay: {', '.join(again)}")
        if left_out := sorted(ended - self.replayed):
            found.append(f"exhausted, and not tried again by a replay: {', '.join(left_out)}")
        return found
