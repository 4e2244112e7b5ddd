"""Resources: clients that are opened once per process and handed to handlers by their class.

A lifespan is an async generator function (or one that returns an async context manager) that opens something, yields
it, and closes it. Lifespans open in the order of registration and close in reverse; if one fails to open, those before
it are closed before the error leaves. Opening and closing are users' code, so both have deadlines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from consumers.errors import LifespanFailed, RegistrationError, ResourceMissing
from consumers.signatures import described
from inbox.redaction import said

FORM = "an async generator function without parameters that yields one resource, or a tuple of several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifespan:
    """One registered lifespan.

    :param name: "module:qualname".
    :param where: "file:line".
    :param function: as it was written.
    :param open: returns the context manager whose value is what it provides.
    """

    name: str
    where: str
    function: Any
    open: Callable[[], AbstractAsyncContextManager[object]]


class Resources:
    """What the lifespans of one consumer have opened."""

    def __init__(self, consumer: str, provided: Sequence[object] = ()) -> None:
        self._consumer = consumer
        self._provided = tuple(provided)

    def including(self, *also: object) -> Resources:
        """Return these resources and some more."""
        return Resources(self._consumer, (*self._provided, *also))

    def find(self, kind: type, *, wanted_by: str) -> object | None:
        """Return the resource of a class, or None. An instance of exactly this class goes before one of a subclass.

        :param wanted_by: said in errors.
        :raises ResourceMissing: more than one fits.
        """
        exact = [resource for resource in self._provided if type(resource) is kind]
        found = exact or [resource for resource in self._provided if isinstance(resource, kind)]
        if len(found) > 1:
            names = ", ".join(type(resource).__qualname__ for resource in found)
            problem = f"{len(found)} resources fit {kind.__qualname__}: {names}"
            raise ResourceMissing(consumer=self._consumer, wanted_by=wanted_by, problem=problem)
        return found[0] if found else None

    def missing(self, kind: type, *, wanted_by: str) -> ResourceMissing:
        """Return the error for a class that nothing provides."""
        provided = ", ".join(type(resource).__qualname__ for resource in self._provided) or "nothing"
        problem = f"no lifespan provides {kind.__module__}.{kind.__qualname__}; provided: {provided}"
        return ResourceMissing(consumer=self._consumer, wanted_by=wanted_by, problem=problem)


def inspect_lifespan(consumer: str, function: Any) -> Lifespan:
    """Check a lifespan function's shape.

    :raises RegistrationError: it cannot be a lifespan.
    """
    name, where = described(function)

    def refused(problem: str) -> RegistrationError:
        return RegistrationError(consumer=consumer, subject=name, where=where, problem=problem, allowed=FORM)

    if not callable(function):
        raise refused(f"a {type(function).__name__} is not a function")
    if inspect.iscoroutinefunction(function):
        raise refused("it is an async function without yield, so nothing would ever be closed")
    if inspect.isgeneratorfunction(function):
        raise refused("it is a plain generator, and opening or closing would block every consumer of the process")
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise refused(f"it needs {', '.join(required)}, and nobody passes that")
    if inspect.isasyncgenfunction(function):
        return Lifespan(name=name, where=where, function=function, open=asynccontextmanager(function))
    if inspect.isasyncgenfunction(inspect.unwrap(function)) or hasattr(function, "__aenter__"):
        return Lifespan(name=name, where=where, function=function, open=function)
    raise refused("it is neither an async generator nor decorated with @asynccontextmanager")


@asynccontextmanager
async def opened(
    consumer: str, lifespans: Sequence[Lifespan], *, start_timeout_s: float, stop_timeout_s: float
) -> AsyncIterator[Resources]:
    """Open all lifespans, yield what they provide, and close them in reverse, each within its deadline.

    :raises LifespanFailed: one failed to open or to close, or took too long; the others are closed.
    """
    provided: list[object] = []
    async with AsyncExitStack() as stack:
        for lifespan in lifespans:
            step = _Step(consumer, lifespan, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
            value = await stack.enter_async_context(step)
            # A named tuple is one resource with a class of its own.
            provided.extend(value if type(value) is tuple else () if value is None else (value,))
        yield Resources(consumer, provided)


class _Step(AbstractAsyncContextManager[object]):
    """One lifespan with its deadlines; its errors say whose they are."""

    def __init__(self, consumer: str, lifespan: Lifespan, *, start_timeout_s: float, stop_timeout_s: float) -> None:
        self._consumer, self._lifespan = consumer, lifespan
        self._start_timeout_s, self._stop_timeout_s = start_timeout_s, stop_timeout_s
        self._manager: AbstractAsyncContextManager[object] | None = None

    async def __aenter__(self) -> object:
        deadline = asyncio.timeout(self._start_timeout_s)
        try:
            async with deadline:
                self._manager = self._lifespan.open()
                return await self._manager.__aenter__()
        except Exception as error:
            raise self._failed("open", error, deadline, self._start_timeout_s) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._manager is not None
        deadline = asyncio.timeout(self._stop_timeout_s)
        try:
            async with deadline:
                # What ended the process is nothing that a lifespan may swallow or answer: it is only told to close.
                await self._manager.__aexit__(None, None, None)
        except Exception as failure:
            raise self._failed("close", failure, deadline, self._stop_timeout_s) from failure

    def _failed(self, step: str, error: Exception, deadline: asyncio.Timeout, timeout_s: float) -> LifespanFailed:
        late = f"it took longer than {timeout_s:g} s" if deadline.expired() else said(error)
        return LifespanFailed(
            consumer=self._consumer, lifespan=self._lifespan.name, where=self._lifespan.where, step=step, problem=late
        )
