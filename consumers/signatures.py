"""The shape of a function that users wrote: name and place, what a call passes through, what its parameters ask for.

Wrappers are looked through (partials, bound methods, callable objects, `functools.wraps`), and annotations are read one
by one, since those that exist only for type checkers cannot be evaluated and need not be.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin


def described(function: Any) -> tuple[str, str]:
    """Return "module:qualname" and "file:line" of anything that was meant as a function."""
    written = [layer for layer in layers(function, through_wrappers=True) if inspect.isfunction(layer)]
    if not written:
        named = function if isinstance(function, type) else type(function)
        return f"{named.__module__}:{named.__qualname__}", "no source"
    code = written[-1].__code__
    name = f"{written[-1].__module__}:{written[-1].__qualname__}"
    path = os.path.relpath(code.co_filename)
    return name, f"{code.co_filename if path.startswith('..') else path}:{code.co_firstlineno}"


def layers(function: Any, *, through_wrappers: bool) -> Iterator[Any]:
    """Yield what a call passes through, outermost first: partials, bound methods, `__call__`.

    :param through_wrappers: follow what `functools.wraps` names too.
    """
    seen: set[int] = set()
    while id(function) not in seen:
        seen.add(id(function))
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif through_wrappers and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not hasattr(function, "__code__") and callable(function) and not inspect.isclass(function):
            function = type(function).__call__


def is_async(function: Any) -> bool:
    """Return whether a call gives something to await.

    A plain wrapper around an async function counts as async: if it was meant to block, awaiting fails loudly, while a
    coroutine returned into a thread would be lost in silence.
    """
    return any(inspect.iscoroutinefunction(layer) for layer in layers(function, through_wrappers=True))


def is_generator(function: Any) -> bool:
    """Return whether a call only makes a generator, so that its body does not run."""
    outer = layers(function, through_wrappers=False)
    return any(inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer) for layer in outer)


def parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters that a caller still has to pass: those that a partial has filled by name are left out.

    :raises ValueError: they are not known.
    """
    bound: set[str] = set()
    for layer in layers(function, through_wrappers=True):
        if isinstance(layer, functools.partial):
            bound.update(layer.keywords)
    try:
        signature = _signature(function)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return [parameter for parameter in signature.parameters.values() if parameter.name not in bound]


def return_annotation(function: Any) -> Any:
    """Return how the answer of a function is annotated, which may be text.

    :raises ValueError: it is not known.
    """
    try:
        return _signature(function).return_annotation
    except TypeError as error:
        raise ValueError(str(error)) from None


def evaluated(annotation: Any, function: Any) -> Any:
    """Return what an annotation stands for.

    :raises ValueError: its names are not known at run time.
    """
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(annotation, str):
        return annotation
    for layer in layers(function, through_wrappers=True):
        if not inspect.isfunction(layer):
            continue
        names = inspect.getclosurevars(layer).nonlocals
        try:
            return eval(annotation, layer.__globals__, dict(names))
        except Exception:  # any expression may be an annotation, so anything may come out of it
            continue
    raise ValueError(f"{annotation} is not known at run time: import it outside of `if TYPE_CHECKING`")


def annotation_name(annotation: Any, function: Any) -> str | None:
    """Return the bare name of an annotated class, also of one that only type checkers know; None if it is no class."""
    try:
        resolved = evaluated(annotation, function)
    except ValueError:
        return str(getattr(annotation, "__forward_arg__", annotation)).rpartition(".")[2]
    kind = get_origin(resolved) or resolved
    return kind.__name__ if isinstance(kind, type) else None


def class_of(annotation: Any, *, or_none: bool = False) -> type:
    """Return the class by whose instances an annotation can be served.

    :param or_none: read `C | None` as C.
    :raises ValueError: there is no such class.
    """
    kind = get_origin(annotation) or annotation
    if kind is Annotated:
        return class_of(get_args(annotation)[0], or_none=or_none)
    if kind in (Union, UnionType):
        arms = [arm for arm in get_args(annotation) if arm is not NoneType or not or_none]
        if len(arms) > 1:
            raise ValueError(f"{annotation} is not one class")
        return class_of(arms[0])
    if not isinstance(kind, type):
        raise ValueError(f"{annotation!r} is not a class")  # noqa: TRY004 - callers turn every ValueError into a message
    if kind is object:
        raise ValueError("everything is an object")
    try:
        isinstance(None, kind)
    except TypeError:
        raise ValueError(f"{kind.__name__} cannot be tested for: a Protocol needs @runtime_checkable") from None
    return kind


def _signature(function: Any) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib

        # Annotations are evaluated when they are asked for, and those for type checkers only would raise here.
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)
