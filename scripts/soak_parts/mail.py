"""What is published: messages of every kind, the same ones for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

CONSUMER = "messages"
SOURCE = "/soak"
TYPE = "soak.message"

_LATEST_COPY_S = 12.0
_POISON_EVERY = 40
_KILLER_EVERY = 1_000
_MENDED, _GIVEN_UP = 0.6, 0.3


class Kind(str, Enum):
    """How its handler behaves; the last three are poison."""

    PLAIN = "plain"
    FLAKY = "flaky"  # raises in its first attempts
    SLOW = "slow"  # its first attempt takes longer than it may
    FAILING = "failing"  # always raises
    REJECTING = "rejecting"  # says that it can never succeed
    KILLING = "killing"  # kills its process

    @property
    def is_poison(self) -> bool:
        """Whether it ends without effect."""
        return self in (Kind.FAILING, Kind.REJECTING, Kind.KILLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One message of the soak.

    :param trouble: in how many attempts of its first generation it makes trouble, if that ends by itself.
    :param at_once: how many copies are published at the same time.
    :param later_s: when further copies follow, in seconds after the first.
    :param pad: bytes that its body is longer than it has to be.
    :param mended: whether poison is none any more once it is replayed.
    :param given_up: whether an operator discards poison that has ended, rather than wait for a replay.
    """

    number: int
    kind: Kind
    trouble: int
    at_once: int
    later_s: tuple[float, ...]
    pad: int
    mended: bool
    given_up: bool

    @property
    def id(self) -> str:
        """The message id."""
        return f"soak-{self.number:07}"

    @property
    def copies(self) -> int:
        """How often it is published."""
        return self.at_once + len(self.later_s)


def mail(seed: int, number: int, *, poison: bool = True) -> Mail:
    """Return a message by its number: any process makes the same one of the same seed.

    Args:
        seed: Of the run.
        number: Counted from 0.
        poison: Whether it may be poison; near the end of a run there is no time for it.
    """
    random = Random(f"{seed} {number}")
    kind = random.choices([Kind.PLAIN, Kind.FLAKY, Kind.SLOW], [89, 10, 1])[0]
    if poison and number % _KILLER_EVERY == _KILLER_EVERY // 4:
        kind = Kind.KILLING
    elif poison and number % _POISON_EVERY == 0:
        kind = random.choice([Kind.FAILING, Kind.REJECTING])
    at_once = random.choices([1, 2], [85, 15])[0]
    more = random.choices([0, 1, 2], [75, 20, 5])[0]
    return Mail(
        number=number,
        kind=kind,
        trouble=random.randint(1, 2) if kind is Kind.FLAKY else 1,
        at_once=at_once,
        later_s=tuple(sorted(random.uniform(0.2, _LATEST_COPY_S) for _ in range(more))),
        pad=random.choices([0, 4_000, 100_000], [80, 18, 2])[0],
        mended=random.random() < _MENDED,
        given_up=random.random() < _GIVEN_UP,
    )
