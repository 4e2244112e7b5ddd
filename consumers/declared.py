"""What lifespans say that they provide: known by their annotations, before anything is opened.

A handler that asks for what none of them names is refused when a plan is made. What they do not name, or name by an
interface alone, is seen when a process starts.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

from consumers.errors import ResourceMissing
from consumers.handlers import Handler
from consumers.resources import Lifespan
from consumers.signatures import class_of, evaluated, return_annotation

_YIELDING = (AsyncIterator, AsyncIterable, AsyncGenerator)


def check_resources(
    consumer: str, handlers: Sequence[Handler], lifespans: Sequence[Lifespan], *, also: tuple[type, ...]
) -> tuple[str, ...]:
    """Return which parameters of a consumer's handlers only a start can serve, or refuse.

    :param also: what the fleet itself provides.
    :raises ResourceMissing: a handler needs a class, and all lifespans name what they provide, and none names that one.
    """
    declared = [declared_by(lifespan) for lifespan in lifespans]
    known = [*also, *(kind for kinds in declared if kinds is not None for kind in kinds)]
    unseen: list[str] = []
    for handler in handlers:
        for parameter, kind in handler.resources.items():
            if parameter in handler.optional or any(_is_a(each, kind) for each in known):
                continue
            wanted_by = f"parameter {parameter} of {handler.name} ({handler.where})"
            # What is yielded may be of a subclass of what is named.
            if None in declared or any(_is_a(kind, each) for each in known):
                unseen.append(wanted_by)
                continue
            named = ", ".join(each.__qualname__ for each in known if each not in also) or "nothing"
            problem = f"no lifespan provides {kind.__module__}.{kind.__qualname__}; by their annotations: {named}"
            raise ResourceMissing(consumer=consumer, wanted_by=wanted_by, problem=problem)
    return tuple(dict.fromkeys(unseen))


def declared_by(lifespan: Lifespan) -> tuple[type, ...] | None:
    """Return the classes of what a lifespan yields, as its annotation says; None if that does not tell."""
    try:
        return tuple(_classes(evaluated(return_annotation(lifespan.function), lifespan.function)))
    except ValueError:
        return None


def _classes(annotation: Any) -> Iterator[type]:
    if get_origin(annotation) not in _YIELDING:
        raise ValueError("it is not annotated by what it yields")
    yielded = get_args(annotation)[0]
    for each in get_args(yielded) if get_origin(yielded) is tuple else (yielded,):
        if each in (None, NoneType):
            continue  # provides nothing
        kind = class_of(each)
        if kind is tuple or inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
            raise ValueError("what is yielded is of a class that is not named")
        yield kind


def _is_a(kind: type, base: type) -> bool:
    try:
        return issubclass(kind, base)
    except TypeError:
        return True  # a Protocol with attributes, which only an instance can be compared with
