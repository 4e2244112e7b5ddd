"""What lifespans name by their annotations, and which handlers are refused by that before anything is opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import pytest

from consumers import Consumer, Envelope, ExhaustionRecord, Tx
from consumers.declared import declared_by
from consumers.errors import ResourceMissing
from consumers.resources import inspect_lifespan
from pools import Pool


class Client: ...


class Mailer(Client): ...


class Tracker: ...


class Point(NamedTuple):
    x: int


class Store(ABC):
    @abstractmethod
    def keep(self) -> None: ...


@runtime_checkable
class Sender(Protocol):
    def send(self) -> None: ...


@runtime_checkable
class Named(Protocol):
    name: str


async def one() -> AsyncIterator[Mailer]:
    yield Mailer()


async def with_answer() -> AsyncGenerator[Mailer, None]:
    yield Mailer()


@asynccontextmanager
async def decorated() -> AsyncIterator[Mailer]:
    yield Mailer()


async def several() -> AsyncIterator[tuple[Mailer, Tracker, None]]:
    yield Mailer(), Tracker(), None


async def named_tuple() -> AsyncIterator[Point]:
    yield Point(1)


async def nothing() -> AsyncIterator[None]:
    yield


async def annotated() -> AsyncIterator[Annotated[Mailer, "of the shop"]]:
    yield Mailer()


async def later() -> AsyncIterator[Later]:
    yield Later()


class Later: ...


async def silent():  # type: ignore[no-untyped-def]
    yield Mailer()


async def anything() -> AsyncIterator[Any]:
    yield Mailer()


async def of_object() -> AsyncIterator[object]:
    yield Mailer()


async def perhaps() -> AsyncIterator[Mailer | None]:
    yield Mailer()


async def many() -> AsyncIterator[tuple[Mailer, ...]]:
    yield (Mailer(),)


async def by_interface() -> AsyncIterator[Store]:
    yield None  # type: ignore[misc]


async def by_protocol() -> AsyncIterator[tuple[Mailer, Sender]]:
    yield Mailer(), None  # type: ignore[misc]


async def for_checkers() -> AsyncIterator[Unknown]:  # type: ignore[name-defined]  # noqa: F821
    yield Mailer()


class Opener:
    async def __aenter__(self) -> Mailer:
        return Mailer()

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("lifespan", "named"),
    [
        (one, (Mailer,)),
        (with_answer, (Mailer,)),
        (decorated, (Mailer,)),
        (several, (Mailer, Tracker)),
        (named_tuple, (Point,)),
        (nothing, ()),
        (annotated, (Mailer,)),
        (later, (Later,)),
        *((each, None) for each in (silent, anything, of_object, perhaps, many, by_interface, by_protocol)),
        *((each, None) for each in (for_checkers, Opener)),
    ],
)
def test_a_lifespan_names_what_it_yields_or_leaves_it_open(lifespan: Any, named: tuple[type, ...] | None) -> None:
    assert declared_by(inspect_lifespan("invoices", lifespan)) == named


def asking(*lifespans: Any, kind: type, optional: bool = False) -> Callable[[], tuple[str, ...]]:
    """Return the check of a consumer with these lifespans and a handler that asks for a class."""
    consumer = Consumer("invoices")
    for lifespan in lifespans:
        consumer.lifespan(lifespan)

    async def needing(envelope: Envelope, tx: Tx, wanted) -> None: ...  # type: ignore[no-untyped-def]

    async def liking(envelope: Envelope, tx: Tx, wanted=None) -> None: ...  # type: ignore[no-untyped-def]

    handler = liking if optional else needing
    handler.__annotations__["wanted"] = kind
    consumer.on("order.placed")(handler)
    return lambda: consumer.check_resources(Pool)


@pytest.mark.parametrize(
    ("lifespans", "kind"),
    [
        ((one,), Mailer),
        ((one,), Client),
        ((nothing, several), Tracker),
        ((), Pool),
        ((silent,), Pool),
        ((one,), Named),
    ],
)
def test_a_handler_that_asks_for_what_is_named_is_served(lifespans: tuple[Any, ...], kind: type) -> None:
    assert asking(*lifespans, kind=kind)() == ()


@pytest.mark.parametrize(
    ("lifespans", "kind", "said"),
    [
        ((), Mailer, "nothing"),
        ((nothing,), Mailer, "nothing"),
        ((one,), Tracker, "Mailer"),
        ((several,), Point, "Mailer, Tracker"),
        ((one,), Sender, "Mailer"),
    ],
)
def test_a_handler_that_asks_for_what_nobody_names_is_refused(
    lifespans: tuple[Any, ...], kind: type, said: str
) -> None:
    with pytest.raises(ResourceMissing, match=rf"no lifespan provides .*\.{kind.__name__}; .*: {said}$") as refused:
        asking(*lifespans, kind=kind)()
    assert "parameter wanted of" in refused.value.wanted_by
    assert asking(*lifespans, kind=kind, optional=True)() == ()


async def base() -> AsyncIterator[Client]:
    yield Mailer()


@pytest.mark.parametrize("lifespans", [(silent,), (one, anything), (by_interface,), (base,)])
def test_what_may_yet_be_provided_is_left_to_the_start(lifespans: tuple[Any, ...]) -> None:
    kind = Mailer if lifespans == (base,) else Tracker
    (unseen,) = asking(*lifespans, kind=kind)()
    assert unseen.startswith("parameter wanted of tests.unit.test_declared:")


def test_the_handler_of_exhaustion_records_is_looked_at_too() -> None:
    consumer = Consumer("invoices")

    @consumer.on_exhausted
    async def report(record: ExhaustionRecord, tx: Tx, tracker: Tracker) -> None: ...

    with pytest.raises(ResourceMissing, match="parameter tracker"):
        consumer.check_resources(Pool)
