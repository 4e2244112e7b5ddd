"""Plain `def` handlers: each runs in a thread of its own, with a tx whose methods block that thread, not the loop.

A thread cannot be cancelled. When its time is up its tx is dead, its next use of it raises, and nobody waits for the
rest; a pool of threads would let a few that hang keep every later handler waiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncpg

    from inbox import Tx

T = TypeVar("T")


class BlockingTx:
    """The same transaction for a `def` handler: the methods of `Tx`, called from its thread, without await."""

    def __init__(self, tx: Tx, loop: asyncio.AbstractEventLoop) -> None:
        self._tx = tx
        self._loop = loop

    def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Run one statement and return its command tag."""
        return self._wait(self._tx.execute(query, *args, timeout=timeout))

    def executemany(self, query: str, args: Iterable[Sequence[object]], *, timeout: float | None = None) -> None:
        """Run one statement for each row of arguments."""
        self._wait(self._tx.executemany(query, args, timeout=timeout))

    def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run a query and return all rows."""
        return self._wait(self._tx.fetch(query, *args, timeout=timeout))

    def fetchrow(self, query: str, *args: object, timeout: float | None = None) -> asyncpg.Record | None:
        """Run a query and return its first row, or None."""
        return self._wait(self._tx.fetchrow(query, *args, timeout=timeout))

    def fetchval(self, query: str, *args: object, column: int = 0, timeout: float | None = None) -> Any:
        """Run a query and return one value of its first row, or None."""
        return self._wait(self._tx.fetchval(query, *args, column=column, timeout=timeout))

    def cursor(
        self, query: str, *args: object, prefetch: int = 50, timeout: float | None = None
    ) -> Iterator[asyncpg.Record]:
        """Iterate over a query's rows, `prefetch` rows to a round trip."""
        rows = self._tx.cursor(query, *args, prefetch=prefetch, timeout=timeout)
        try:
            while True:
                try:
                    yield self._wait(_next(rows))
                except _NoMoreRows:
                    return
        finally:
            self._wait(rows.aclose())

    def copy(
        self,
        table: str,
        *,
        records: Iterable[Sequence[object]],
        columns: Sequence[str] | None = None,
        schema: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Load rows into a table by COPY and return the command tag."""
        return self._wait(self._tx.copy(table, records=records, columns=columns, schema=schema, timeout=timeout))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A nested block: an exception undoes what was done inside, and passes on."""
        block = self._tx.savepoint()
        self._wait(block.__aenter__())
        try:
            yield
        except BaseException as error:
            self._wait(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._wait(block.__aexit__(None, None, None))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


async def _next(rows: Any) -> Any:
    try:
        return await rows.__anext__()
    except StopAsyncIteration as end:
        # A coroutine cannot raise this one through a future.
        raise _NoMoreRows from end


class _NoMoreRows(Exception):
    """The cursor has no more rows."""


async def in_thread(name: str, call: Callable[[], T]) -> T:
    """Run a function in a new thread, with this context's variables, and wait for it.

    Cancelling the wait abandons the thread: what it does afterwards, and how it ends, is nobody's business.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(answer: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(answer)  # type: ignore[arg-type]

    def run() -> None:
        answer: T | None = None
        failure: BaseException | None = None
        try:
            answer = context.run(call)
        except BaseException as error:  # whatever it is, it belongs to the one who waits
            failure = (
                RuntimeError(f"{type(error).__name__} left the handler") if isinstance(error, StopIteration) else error
            )
        try:
            loop.call_soon_threadsafe(settle, answer, failure)
        except RuntimeError:
            return  # the loop has ended meanwhile, and with it whoever waited

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
