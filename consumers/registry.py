"""`Consumer`: where handlers and lifespans are registered, and how one is found by its reference.

Mistakes are raised while the module with the handlers is imported, at the line that makes them. A consumer holds no
connections and no settings: it says what can be done with messages; the configuration says with which and how often.
"""

from __future__ import annotations

import difflib
import importlib
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from consumers.config.checks import MAX_STEPS
from consumers.config.quantities import NAME, Seconds, Step
from consumers.declared import check_resources
from consumers.errors import ConsumerNotFound, RegistrationError
from consumers.handlers import BoundHandler, Handler, inspect_handler
from consumers.resources import Lifespan, Resources, inspect_lifespan, opened
from consumers.signatures import described
from inbox.redaction import said

F = TypeVar("F", bound=Callable[..., Any])

CATCH_ALL = "*"
MAX_TYPE_BYTES = 255


@dataclass(frozen=True, slots=True)
class Routes:
    """The handlers of one consumer with their resources, by message type."""

    _by_type: Mapping[str, BoundHandler]
    exhausted: BoundHandler | None = None
    """What exhausted messages are reported to."""

    def find(self, message_type: str) -> BoundHandler | None:
        """Return the handler of a type: its own, else the catch-all, else None."""
        return self._by_type.get(message_type) or self._by_type.get(CATCH_ALL)


class Consumer:
    """A set of handlers for the messages of one queue.

    :param name: as in `[consumers.NAME]` of the configuration.
    :raises RegistrationError: it is not a name.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not re.match(NAME, name):
            raise RegistrationError(
                consumer=str(name),
                subject="Consumer",
                where="",
                problem=f"{name!r} is not a name",
                allowed="up to 40 characters: a lower-case letter, then a to z, 0 to 9, - and _",
            )
        self.name = name
        self._handlers: dict[str, Handler] = {}
        self._on_exhausted: Handler | None = None
        self._lifespans: list[Lifespan] = []

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, types={sorted(self._handlers)})"

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The registered handlers by message type."""
        return dict(self._handlers)

    @property
    def exhausted_handler(self) -> Handler | None:
        """The handler of exhausted messages, if there is one."""
        return self._on_exhausted

    def on(
        self,
        types: str | tuple[str, ...],
        *,
        max_attempts: int | None = None,
        timeout: float | str | None = None,
        pacing: tuple[float | str, ...] | list[float | str] | None = None,
    ) -> Callable[[F], F]:
        """Register a function for one message type, or for several given as a tuple; decorators may be stacked.

        Types are compared as they are. "*" stands for every type without a handler of its own, and for messages that
        name no type at all.

        :param max_attempts: in place of the consumer's.
        :param timeout: in place of the consumer's `handler_timeout`: seconds, or a duration such as "2m".
        :param pacing: in place of the consumer's.
        :raises RegistrationError: the function cannot be a handler, a type has one already, or an option is wrong.
        """
        if callable(types):
            name, where = described(types)
            problem = "the decorator stands without a message type"
            raise self._refused(name, where, problem, f'@{self.name}.on("order.placed"), or on("*") for every type')

        def register(function: F) -> F:
            handler = inspect_handler(self.name, function)
            handler = replace(
                handler,
                types=self._types(types, handler),
                max_attempts=self._max_attempts(max_attempts, handler),
                timeout_s=self._timeout_s(timeout, handler),
                pacing_s=self._pacing_s(pacing, handler),
            )
            for message_type in handler.types:
                self._handlers[message_type] = handler
            return function

        return register

    def on_exhausted(self, function: F) -> F:
        """Register the function that is told of each message of this consumer that became exhausted.

        It gets an `ExhaustionRecord` and a tx, at least once for each record; what it does by that tx commits together
        with the acknowledgement. If it raises it is tried again, as often and with such pauses as the consumer's
        messages are; `Reject` leaves the record to an operator at once. Further parameters get resources.

        :raises RegistrationError: the function cannot be such a handler, or there is one already.
        """
        handler = inspect_handler(self.name, function, gets="ExhaustionRecord")
        other = self._on_exhausted
        if other is not None:
            problem = f"exhausted messages are already reported to {other.name} ({other.where})"
            raise self._refused(handler.name, handler.where, problem, "one on_exhausted for each consumer")
        self._on_exhausted = handler
        return function

    def lifespan(self, function: F) -> F:
        """Register an async generator function that opens what handlers need, yields it, and closes it.

        It is entered once per process and consumer, before the first message. It yields one resource or a tuple of
        several; a handler gets one by a further parameter that is annotated with its class.

        :raises RegistrationError: the function cannot be a lifespan.
        """
        self._lifespans.append(inspect_lifespan(self.name, function))
        return function

    def handler_for(self, message_type: str) -> Handler | None:
        """Return the handler of a type: its own, else the catch-all, else None."""
        return self._handlers.get(message_type) or self._handlers.get(CATCH_ALL)

    def open(self, *, start_timeout_s: float, stop_timeout_s: float) -> AbstractAsyncContextManager[Resources]:
        """Return a context manager that opens the lifespans, in order, and closes them in reverse.

        :param start_timeout_s: for each of them to open.
        :param stop_timeout_s: for each of them to close.
        :raises LifespanFailed: on entering, one could not be opened, and those before it are closed again; on leaving,
            one could not be closed.
        """
        return opened(self.name, self._lifespans, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)

    def check_resources(self, *also: type) -> tuple[str, ...]:
        """Return which parameters of handlers can be served or refused at a start alone, by what lifespans name.

        :param also: classes that the fleet itself provides.
        :raises ResourceMissing: a handler needs what, by their annotations, no lifespan provides.
        """
        reporting = () if self._on_exhausted is None else (self._on_exhausted,)
        return check_resources(self.name, [*self._handlers.values(), *reporting], self._lifespans, also=also)

    def resolve(self, provided: Resources) -> Routes:
        """Return all handlers with their resources.

        :raises ResourceMissing: a handler needs what no lifespan provides, or what more than one does.
        """
        exhausted = self._on_exhausted
        return Routes(
            {message_type: handler.bind(provided) for message_type, handler in self._handlers.items()},
            None if exhausted is None else exhausted.bind(provided),
        )

    def _types(self, types: str | tuple[str, ...], handler: Handler) -> tuple[str, ...]:
        chosen = types if isinstance(types, tuple) else (types,)
        allowed = 'a message type such as "order.placed", a tuple of them, or "*"'
        if not chosen:
            raise self._refused(handler.name, handler.where, "it is registered for no type", allowed)
        for message_type in chosen:
            problem = _type_problem(message_type)
            if problem is not None:
                raise self._refused(handler.name, handler.where, f"{message_type!r} {problem}", allowed)
            other = self._handlers.get(message_type)
            if other is not None or chosen.count(message_type) > 1:
                by = f"{other.name} ({other.where})" if other is not None else "the same decorator"
                problem = f'type "{message_type}" is already handled by {by}'
                raise self._refused(handler.name, handler.where, problem, "one handler for each type")
        return chosen

    def _max_attempts(self, value: int | None, handler: Handler) -> int | None:
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000):
            return value
        raise self._refused(handler.name, handler.where, f"max_attempts = {value!r}", "a whole number from 1 to 1000")

    def _timeout_s(self, value: float | str | None, handler: Handler) -> float | None:
        if value is None:
            return None
        try:
            return float(Seconds.read(value))
        except ValueError as error:
            problem = f"timeout = {value!r}: {error}"
            raise self._refused(handler.name, handler.where, problem, Seconds.allowed) from None

    def _pacing_s(
        self, value: tuple[float | str, ...] | list[float | str] | None, handler: Handler
    ) -> tuple[float, ...] | None:
        if value is None:
            return None
        allowed = f"1 to {MAX_STEPS} steps, each {Step.allowed}"
        if not isinstance(value, (tuple, list)) or not 1 <= len(value) <= MAX_STEPS:
            raise self._refused(handler.name, handler.where, f"pacing = {value!r}", allowed)
        try:
            return tuple(float(Step.read(step)) for step in value)
        except ValueError as error:
            problem = f"pacing = {value!r}: {error}"
            raise self._refused(handler.name, handler.where, problem, allowed) from None

    def _refused(self, subject: str, where: str, problem: str, allowed: str) -> RegistrationError:
        return RegistrationError(consumer=self.name, subject=subject, where=where, problem=problem, allowed=allowed)


def load_consumer(reference: str, *, name: str) -> Consumer:
    """Import a consumer by its reference.

    :param reference: "module:attribute", such as "billing.handlers:invoices".
    :param name: the name it is configured under, which must be its own.
    :raises ConsumerNotFound: there is no such module or attribute, the module fails, or it is another consumer.
    :raises RegistrationError: the module registers a handler that cannot be one.
    """
    module_name, _, attribute = reference.partition(":")
    found: Any = _imported(reference, module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, _consumers_in(found), n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"consumers there: {', '.join(_consumers_in(found)) or 'none'}"
            )
            raise ConsumerNotFound(reference=reference, problem=f"{module_name} has no attribute {part}; {hint}")
        found = getattr(found, part)
    if not isinstance(found, Consumer):
        problem = f"it is a {type(found).__name__}, not a Consumer"
        raise ConsumerNotFound(reference=reference, problem=problem)
    if found.name != name:
        problem = f'it is Consumer("{found.name}"), but it is configured as [consumers.{name}]; the names must be equal'
        raise ConsumerNotFound(reference=reference, problem=problem)
    if not found.handlers:
        problem = f'no handler is registered: decorate a function with @{attribute}.on("TYPE")'
        raise ConsumerNotFound(reference=reference, problem=problem)
    return found


def _imported(reference: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except RegistrationError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            problem = f"there is no module {error.name}; is its folder on the path, or its package installed?"
            raise ConsumerNotFound(reference=reference, problem=problem) from None
        raise ConsumerNotFound(reference=reference, problem=_failure(error)) from error
    except (Exception, SystemExit) as error:  # users' code: whatever it raises, nothing can start, and this says why
        raise ConsumerNotFound(reference=reference, problem=_failure(error)) from error


def _failure(error: BaseException) -> str:
    traced = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in traced if "importlib" not in frame.filename and frame.filename != __file__]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"importing it failed{where}: {said(error)}"


def _consumers_in(module: Any) -> list[str]:
    return sorted(name for name, value in vars(module).items() if isinstance(value, Consumer))


def _type_problem(message_type: object) -> str | None:
    if not isinstance(message_type, str):
        return "is not a text"
    if message_type == CATCH_ALL:
        return None
    if "*" in message_type or "#" in message_type:
        return "is a pattern, and types are compared as they are"
    if not message_type or not message_type.isprintable() or len(message_type.encode()) > MAX_TYPE_BYTES:
        return f"is not a type: 1 to {MAX_TYPE_BYTES} bytes of printable text"
    return None
