"""Lifespans: opened once and in order, rolled back when one fails, closed in reverse, each within its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from consumers.errors import LifespanFailed, RegistrationError
from consumers.registry import Consumer
from consumers.resources import Resources


class First:
    pass


class Second:
    pass


class Pair(NamedTuple):
    a: int
    b: int


@pytest.fixture
def invoices() -> Consumer:
    return Consumer("invoices")


def opening(consumer: Consumer, *, start_timeout_s: float = 5, stop_timeout_s: float = 5) -> Any:
    return consumer.open(start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)


def recorded(consumer: Consumer, log: list[str], name: str, value: object = None, *, fail: str = "") -> None:
    async def lifespan() -> AsyncIterator[object]:
        log.append(f"open {name}")
        if fail == "open":
            raise ConnectionRefusedError("nobody listens")
        try:
            yield value
        finally:
            log.append(f"close {name}")
            if fail == "close":
                raise OSError("already gone")

    consumer.lifespan(lifespan)


async def test_lifespans_open_in_order_and_close_in_reverse(invoices: Consumer) -> None:
    log: list[str] = []
    recorded(invoices, log, "first")
    recorded(invoices, log, "second")
    async with opening(invoices):
        assert log == ["open first", "open second"]
    assert log == ["open first", "open second", "close second", "close first"]


async def test_what_is_yielded_is_what_handlers_can_ask_for(invoices: Consumer) -> None:
    log: list[str] = []
    first, second, pair = First(), Second(), Pair(1, 2)
    recorded(invoices, log, "several", (first, second))
    recorded(invoices, log, "one", pair)
    recorded(invoices, log, "nothing", None)
    async with opening(invoices) as resources:
        assert isinstance(resources, Resources)
        assert resources.find(First, wanted_by="test") is first
        assert resources.find(Second, wanted_by="test") is second
        assert resources.find(Pair, wanted_by="test") is pair
        assert resources.find(type(None), wanted_by="test") is None


async def test_a_failed_start_closes_what_was_opened(invoices: Consumer) -> None:
    log: list[str] = []
    recorded(invoices, log, "first")
    recorded(invoices, log, "second", fail="open")
    recorded(invoices, log, "third")
    with pytest.raises(LifespanFailed, match="did not open: ConnectionRefusedError: nobody listens") as caught:
        async with opening(invoices):
            pytest.fail("entered")
    assert log == ["open first", "open second", "close first"]
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert caught.value.lifespan.endswith("recorded.<locals>.lifespan")
    assert "test_lifespans.py:" in caught.value.where


async def test_a_failed_close_does_not_keep_the_others_open(invoices: Consumer) -> None:
    log: list[str] = []
    recorded(invoices, log, "first")
    recorded(invoices, log, "second", fail="close")
    with pytest.raises(LifespanFailed, match="did not close: OSError: already gone"):
        async with opening(invoices):
            pass
    assert log == ["open first", "open second", "close second", "close first"]


async def test_a_lifespan_that_hangs_while_opening_is_given_up(invoices: Consumer) -> None:
    log: list[str] = []
    recorded(invoices, log, "first")

    @invoices.lifespan
    async def hangs() -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    with pytest.raises(LifespanFailed, match=r"hangs .* did not open: it took longer than 0.01 s"):
        async with opening(invoices, start_timeout_s=0.01):
            pytest.fail("entered")
    assert log == ["open first", "close first"]


async def test_a_lifespan_that_hangs_while_closing_is_given_up(invoices: Consumer) -> None:
    log: list[str] = []
    recorded(invoices, log, "first")

    @invoices.lifespan
    async def hangs() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    with pytest.raises(LifespanFailed, match=r"did not close: it took longer than 0.01 s"):
        async with opening(invoices, stop_timeout_s=0.01):
            pass
    assert log == ["open first", "close first"]


async def test_cancelling_a_start_rolls_back_and_stays_a_cancellation(invoices: Consumer) -> None:
    log: list[str] = []
    waiting = asyncio.Event()
    recorded(invoices, log, "first")

    @invoices.lifespan
    async def waits() -> AsyncIterator[None]:
        waiting.set()
        await asyncio.Event().wait()
        yield

    async def start() -> None:
        async with opening(invoices):
            pytest.fail("entered")

    task = asyncio.create_task(start())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["open first", "close first"]


async def test_a_lifespan_cannot_swallow_what_ended_the_process(invoices: Consumer) -> None:
    log: list[str] = []

    @invoices.lifespan
    async def swallows() -> AsyncIterator[None]:
        try:
            yield
        except ValueError:
            log.append("swallowed")

    with pytest.raises(ValueError, match="the reason"):
        async with opening(invoices):
            raise ValueError("the reason")
    assert log == []


async def test_a_context_manager_of_the_users_own_is_a_lifespan_too(invoices: Consumer) -> None:
    class Client:
        closed = False

        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *error: object) -> None:
            self.closed = True

    @invoices.lifespan
    @asynccontextmanager
    async def second() -> AsyncIterator[Second]:
        yield Second()

    invoices.lifespan(Client)
    async with opening(invoices) as resources:
        client = resources.find(Client, wanted_by="test")
        assert isinstance(client, Client)
        assert resources.find(Second, wanted_by="test") is not None
    assert client.closed


async def coroutine() -> None: ...


def generator() -> Iterator[None]:
    yield


def function() -> None: ...


async def needs(url: str) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("lifespan", "problem"),
    [
        (coroutine, "without yield"),
        (generator, "plain generator"),
        (function, "neither"),
        (needs, "needs url"),
        (First, "neither"),
        ("x", "not a function"),
    ],
)
def test_a_function_that_cannot_be_a_lifespan_is_refused(invoices: Consumer, lifespan: Any, problem: str) -> None:
    with pytest.raises(RegistrationError, match=problem) as caught:
        invoices.lifespan(lifespan)
    assert caught.value.consumer == "invoices"
    assert "yields one resource" in caught.value.allowed


async def test_a_lifespan_that_yields_twice_is_reported(invoices: Consumer) -> None:
    @invoices.lifespan
    async def twice() -> AsyncIterator[None]:
        yield
        yield

    with pytest.raises(LifespanFailed, match="did not close: RuntimeError"):
        async with opening(invoices):
            pass


@pytest.mark.parametrize("step", ["open", "close"])
async def test_what_a_lifespan_failed_with_is_said_without_the_secrets_of_its_url(
    invoices: Consumer, step: str
) -> None:
    @invoices.lifespan
    async def cache() -> AsyncIterator[None]:
        if step == "close":
            yield
        raise ConnectionError("cannot reach 'redis://:hunter2@cache:6379/0', nor https://hunter2@cache.example")

    with pytest.raises(LifespanFailed, match=r"cannot reach 'redis://\*\*\*@cache:6379/") as caught:
        async with opening(invoices):
            pass
    assert "hunter2" not in str(caught.value)


async def test_a_lifespan_whose_error_cannot_be_printed_is_reported(invoices: Consumer) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError

    @invoices.lifespan
    async def broken() -> AsyncIterator[None]:
        raise Unprintable
        yield

    with pytest.raises(LifespanFailed, match=r"did not open: Unprintable \(it cannot be printed: ValueError"):
        async with opening(invoices):
            pass
