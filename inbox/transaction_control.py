"""Which statements a handler may not send: those that end, nest or outlive the attempt's transaction.

This is politeness: it tells a handler early, by name, what it did. The guarantee is elsewhere: the stamp releases the
claim's own savepoint, which fails in every way a transaction can have been ended (`inbox.statements.stamp`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from inbox.errors import TxRefused

_ENDS = "the attempt's transaction is ended by the fleet: return, raise, or use `async with tx.savepoint()`"
_OUTLIVES = "it would outlive the attempt in its session: use SET LOCAL, or a connection of your own"
_BEGUN = (
    "the attempt's transaction runs already, read committed and writing, and the fleet's statements rest on that: lock "
    "what must not change by SELECT … FOR UPDATE, or use a connection of your own"
)
_REFUSED: dict[str, str] = {
    "BEGIN": _ENDS,
    "START": _ENDS,
    "COMMIT": _ENDS,
    "END": _ENDS,
    "ROLLBACK": _ENDS,
    "ABORT": _ENDS,
    "SAVEPOINT": _ENDS,
    "RELEASE": _ENDS,
    "PREPARE": _OUTLIVES,
    "DEALLOCATE": _OUTLIVES,
    "DISCARD": _OUTLIVES,
    "RESET": _OUTLIVES,
    "LISTEN": _OUTLIVES,
    "UNLISTEN": _OUTLIVES,
    "SET": _OUTLIVES,
}
_SET_MAY = frozenset({"LOCAL", "CONSTRAINTS"})
_REMEMBERED_CHARACTERS = 4096
_STREAMS = re.compile(r"\b(?:stdin|stdout)\b", re.IGNORECASE)
_LINE_END = re.compile(r"[\r\n]")


def check(query: str) -> None:
    """Refuse a statement by its first keyword, and text that would take the connection down.

    :raises TxRefused: the statement controls the transaction or changes the session.
    :raises UnicodeEncodeError: the text holds a lone surrogate; sent, it would close the connection.
    :raises ValueError: the text holds NUL.
    """
    # A generated text of megabytes comes once, and would be kept for ever.
    (_checked if len(query) <= _REMEMBERED_CHARACTERS else _check)(query)


def check_text(text: str) -> None:
    """Refuse text that would take the connection down, or the transaction, if it stood in a statement.

    :raises UnicodeEncodeError: it holds a lone surrogate.
    :raises ValueError: it holds NUL.
    """
    text.encode("utf-8")
    if "\x00" in text:
        raise ValueError("an SQL text cannot hold NUL: pass the value as an argument, made safe for text")


def _check(query: str) -> None:
    check_text(query)
    position = _skip(query, 0)
    keyword, position = _word(query, position)
    if keyword == "COPY" and _STREAMS.search(query):
        raise TxRefused(keyword=keyword, advice="nobody would send or take its data: use tx.copy() or a query")
    if keyword not in _REFUSED:
        return
    if keyword == "SET":
        following, position = _word(query, _skip(query, position))
        scoped, _ = _word(query, _skip(query, position)) if following in ("LOCAL", "SESSION") else (following, 0)
        if scoped == "TRANSACTION":
            raise TxRefused(keyword="SET TRANSACTION", advice=_BEGUN)
        if following in _SET_MAY:
            return
    raise TxRefused(keyword=keyword, advice=_REFUSED[keyword])


_checked = lru_cache(maxsize=2048)(_check)


def _word(query: str, position: int) -> tuple[str, int]:
    end = position
    while end < len(query) and (query[end].isalpha() or query[end] == "_"):
        end += 1
    return query[position:end].upper(), end


def _skip(query: str, position: int) -> int:
    """Return the position of the first character that is no blank, semicolon or comment (block comments nest)."""
    while position < len(query):
        if query[position].isspace() or query[position] == ";":
            position += 1
        elif query.startswith("--", position):
            end = _LINE_END.search(query, position)  # the server ends a comment at either
            position = len(query) if end is None else end.end()
        elif query.startswith("/*", position):
            depth, position = 1, position + 2
            while position < len(query) and depth:
                if query.startswith("/*", position):
                    depth, position = depth + 1, position + 2
                elif query.startswith("*/", position):
                    depth, position = depth - 1, position + 2
                else:
                    position += 1
        else:
            break
    return position
