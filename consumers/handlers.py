"""A handler: a function that users wrote, checked when it is registered.

Everything that can be wrong with its shape is found when its module is imported, and named with file and line; what
needs the resources of a running process is found at start. It is called as `function(envelope, tx, **arguments)`, the
arguments being resources chosen by the annotations of its further parameters; one for exhausted messages gets their
record in place of an envelope.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from consumers.errors import RegistrationError, UnexpectedAnswer
from consumers.resources import Resources
from consumers.signatures import annotation_name, class_of, described, evaluated, is_async, is_generator, parameters
from inbox import Envelope, ExhaustionRecord

_RESOURCES = "with further parameters annotated by the class of a resource"
FORMS = {
    "Envelope": f"async def handle(envelope: Envelope, tx: Tx) -> None, {_RESOURCES}",
    "ExhaustionRecord": f"async def report(record: ExhaustionRecord, tx: Tx) -> None, {_RESOURCES}",
}
"""How a handler is written, by what it gets first."""
_CALLED = {"Envelope": "envelope", "ExhaustionRecord": "record"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """One registered function.

    :param name: "module:qualname", as it stands in logs and records.
    :param where: "file:line", as it stands in errors.
    :param types: the message types it was registered for; ("*",) for the catch-all, none for exhausted messages.
    :param is_sync: a plain `def`: it must run in a thread, and its answer is not awaited.
    :param resources: the class of each parameter that takes a resource.
    :param optional: those of them that keep their default where nothing provides the class.
    :param max_attempts: overrides the consumer's, unless None; as do the next two.
    """

    consumer: str
    name: str
    where: str
    types: tuple[str, ...]
    function: Callable[..., Any]
    is_sync: bool
    resources: Mapping[str, type]
    optional: frozenset[str] = frozenset()
    max_attempts: int | None = None
    timeout_s: float | None = None
    pacing_s: tuple[float, ...] | None = None

    def bind(self, provided: Resources) -> BoundHandler:
        """Return the handler with its resources filled in.

        :raises ResourceMissing: nothing provides a class that it needs, or more than one thing does.
        """
        arguments: dict[str, object] = {}
        for parameter, kind in self.resources.items():
            wanted_by = f"parameter {parameter} of {self.name} ({self.where})"
            found = provided.find(kind, wanted_by=wanted_by)
            if found is not None:
                arguments[parameter] = found
            elif parameter not in self.optional:
                raise provided.missing(kind, wanted_by=wanted_by)
        return BoundHandler(handler=self, arguments=arguments)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundHandler:
    """A handler and the resources of this process: what a lane calls."""

    handler: Handler
    arguments: Mapping[str, object]

    def __call__(self, given: Envelope | ExhaustionRecord, tx: Any) -> Any:
        """Call the function; of an async one, await the result. Then, either way, let `accept` look at the answer."""
        return self.handler.function(given, tx, **self.arguments)

    def accept(self, answer: object) -> None:
        """Look at what the handler returned. Ordinary values mean nothing and are let go.

        :raises UnexpectedAnswer: the answer shows that the work is not done: an exception that was returned instead of
            raised, or work that nobody awaited or iterated. The attempt has to fail, or the message would be lost.
        """
        name = answer.__name__ if isinstance(answer, type) else type(answer).__name__
        if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
            problem, advice = f"it returned {name}, which undoes nothing", f"raise {name}"
        elif inspect.iscoroutine(answer) or inspect.isgenerator(answer):
            answer.close()
            problem, advice = f"it returned a {name}, whose work never ran", "write it as async def, and await"
        elif inspect.isawaitable(answer) or inspect.isasyncgen(answer):
            problem, advice = f"it returned a {name} that nobody awaits", "write it as async def, and await"
        else:
            return
        raise UnexpectedAnswer(handler=self.handler.name, problem=problem, advice=advice)


def inspect_handler(consumer: str, function: Any, *, gets: str = "Envelope") -> Handler:
    """Check a function's shape and return it as a handler for no types yet.

    :param gets: the class of its first parameter, one of `FORMS`.
    :raises RegistrationError: it cannot be a handler.
    """
    name, where = described(function)
    try:
        resources, optional = _inspect(function, gets)
    except ValueError as error:
        raise RegistrationError(
            consumer=consumer, subject=name, where=where, problem=str(error), allowed=FORMS[gets]
        ) from None
    return Handler(
        consumer=consumer,
        name=name,
        where=where,
        types=(),
        function=function,
        is_sync=not is_async(function),
        resources=resources,
        optional=optional,
    )


def _inspect(function: Any, gets: str) -> tuple[dict[str, type], frozenset[str]]:
    if not callable(function):
        raise ValueError(f"a {type(function).__name__} is not a function")  # noqa: TRY004 - one error, one message
    if inspect.isclass(function):
        raise ValueError("it is a class; an object that can be called would do")
    if is_generator(function):
        raise ValueError("it contains yield, so that calling it runs nothing")
    given = parameters(function)
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in given):
        raise ValueError("it takes *args or **kwargs, so what it needs is not known; a decorator uses functools.wraps")
    leading = [parameter for parameter in given[:2] if parameter.kind is not parameter.KEYWORD_ONLY]
    _check_leading(leading, function, gets)
    resources: dict[str, type] = {}
    optional: set[str] = set()
    for parameter in given[2:]:
        kind = _resource(parameter, function)
        if kind is not None:
            resources[parameter.name] = kind
            if parameter.default is not parameter.empty:
                optional.add(parameter.name)
    return resources, frozenset(optional)


def _check_leading(leading: list[inspect.Parameter], function: Any, gets: str) -> None:
    if leading and leading[0].name in ("self", "cls"):
        raise ValueError(
            f"its first parameter is {leading[0].name}: register a bound method, or a function of a module"
        )
    if len(leading) < 2:
        raise ValueError(
            f"it takes {len(leading) or 'no'} positional parameter{'s' * (len(leading) != 1)} instead of two"
        )
    # These two may be annotated for type checkers only, so they are judged by name.
    first, second = (annotation_name(parameter.annotation, function) for parameter in leading)
    if first == "Tx" or second in FORMS:
        raise ValueError(f"the {_CALLED[gets]} comes first, and tx second")
    for other in FORMS.keys() - {gets}:
        if first == other:
            raise ValueError(f"parameter {leading[0].name} is annotated {other}, and gets the {gets}")
    for parameter, name, expected in zip(leading, (first, second), (gets, "Tx"), strict=True):
        if name in ("str", "bytes", "int", "float", "bool", "dict", "list", "tuple"):
            raise ValueError(f"parameter {parameter.name} is annotated {name}, and gets the {expected}")


def _resource(parameter: inspect.Parameter, function: Any) -> type | None:
    """Return the class that a further parameter asks for; None if it has a default and asks for none."""
    has_default = parameter.default is not parameter.empty
    try:
        if parameter.annotation is parameter.empty:
            raise ValueError("it has no annotation")
        kind = class_of(evaluated(parameter.annotation, function), or_none=has_default)
    except ValueError as error:
        if has_default:
            return None
        raise ValueError(f"no resource can be chosen for parameter {parameter.name}: {error}") from None
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise ValueError(f"parameter {parameter.name} is positional-only, and resources are passed by name")
    return kind
