"""A read-only mapping that is made when it is first looked into.

Most handlers never look at headers, and decoding them costs more than everything else that is done to a delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class LazyMapping(Mapping[str, Any]):
    """A mapping from `make`, which is called at most once and must not fail."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made: Mapping[str, Any] | None = None

    def _items(self) -> Mapping[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> Any:
        return self._items()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items())

    def __len__(self) -> int:
        return len(self._items())

    def __contains__(self, key: object) -> bool:
        return key in self._items()

    def __repr__(self) -> str:
        return repr(self._items())
