"""The transaction that a handler gets.

A `Tx` is bound to one server session and to one attempt: nothing reconnects under it, a handler cannot end it, and
every use after the attempt raises. It never uses the simple protocol, so no statement can hide a second one behind a
semicolon. It remembers the driver errors that passed through it: only those may be judged as the database's fault,
since a handler's HTTP client raises the same `TimeoutError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg

from inbox.errors import TxBroken, TxDead, TxRefused
from inbox.transaction_control import check, check_text

if TYPE_CHECKING:
    from types import TracebackType

MAX_SAVEPOINTS = 30
"""Per attempt. Released savepoints that wrote hold a slot until the end; beyond 64 all readers of the cluster slow."""

_RELEASE_WAIT_S = 1.0


class Tx:
    """One attempt's transaction. Handed to handlers; never made by them.

    Every method raises `TxDead` once the attempt is over, `TxRefused` for statements that control the transaction or
    change the session, and `TxBroken` when two tasks use the tx at once.
    """

    __slots__ = ("_broken", "_busy", "_connection", "_dead", "_faults", "_savepoints")

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._dead = False
        self._broken: str | None = None
        self._busy: asyncio.Task[Any] | None = None
        self._faults: list[BaseException] = []
        self._savepoints = 0

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Run one statement and return its command tag.

        :param timeout: seconds; None leaves the bound to the attempt.
        """
        async with self._use(query):
            # The driver's own `execute` takes the simple protocol when there are no arguments.
            _, status, _ = await self._connection._execute(  # type: ignore[attr-defined]
                query, args, 0, timeout, return_status=True
            )
            return "" if status is None else str(status.decode())  # of a statement that is only a comment

    async def executemany(self, query: str, args: Iterable[Sequence[object]], *, timeout: float | None = None) -> None:
        """Run one statement for each row of arguments."""
        async with self._use(query):
            await self._connection.executemany(query, args, timeout=timeout)

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run a query and return all rows."""
        async with self._use(query):
            rows: list[asyncpg.Record] = await self._connection.fetch(query, *args, timeout=timeout)
            return rows

    async def fetchrow(self, query: str, *args: object, timeout: float | None = None) -> asyncpg.Record | None:
        """Run a query and return its first row, or None."""
        async with self._use(query):
            row: asyncpg.Record | None = await self._connection.fetchrow(query, *args, timeout=timeout)
            return row

    async def fetchval(self, query: str, *args: object, column: int = 0, timeout: float | None = None) -> Any:
        """Run a query and return one value of its first row, or None."""
        async with self._use(query):
            return await self._connection.fetchval(query, *args, column=column, timeout=timeout)

    async def cursor(
        self, query: str, *args: object, prefetch: int = 50, timeout: float | None = None
    ) -> AsyncGenerator[asyncpg.Record, None]:
        """Iterate over a query's rows, `prefetch` rows to a round trip. Other statements may run between two rows."""
        async with self._use(query):
            portal = await self._connection.cursor(query, *args, timeout=timeout)
        while True:
            async with self._use():
                rows = await portal.fetch(prefetch, timeout=timeout)
            for row in rows:
                yield row
            if len(rows) < prefetch:
                return

    async def copy(
        self,
        table: str,
        *,
        records: Iterable[Sequence[object]],
        columns: Sequence[str] | None = None,
        schema: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Load rows into a table by COPY and return the command tag."""
        for name in (table, *(columns or ()), *((schema,) if schema is not None else ())):
            check_text(name)
        async with self._use():
            return str(
                await self._connection.copy_records_to_table(
                    table, records=records, columns=columns, schema_name=schema, timeout=timeout
                )
            )

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A nested block: an exception undoes what was done inside, and passes on; the outer work stays usable.

        :raises TxRefused: the attempt has had `MAX_SAVEPOINTS` blocks.
        """
        if self._savepoints >= MAX_SAVEPOINTS:
            raise TxRefused(
                keyword="SAVEPOINT",
                advice=f"an attempt has {MAX_SAVEPOINTS} nested blocks at most; handle many rows in one statement",
            )
        self._savepoints += 1
        name = f"n_{uuid4().hex}"
        async with self._use():
            await self._connection.execute(f"SAVEPOINT {name}")
        faults = len(self._faults)
        try:
            yield
        except BaseException:
            if not self._dead and self._broken is None and not self._connection.is_closed():
                async with self._use():
                    await self._connection.execute(f"ROLLBACK TO SAVEPOINT {name};RELEASE SAVEPOINT {name}")
                # What was undone here no longer explains how the transaction stands.
                del self._faults[faults:]
            raise
        async with self._use():
            await self._connection.execute(f"RELEASE SAVEPOINT {name}")

    def _use(self, query: str | None = None) -> _Use:
        if self._dead:
            raise TxDead
        if self._busy is not None:
            self._broken = (
                "two tasks used one tx at the same time: a tx is one session, which runs one statement at a time; "
                "await one after the other"
            )
        if self._broken is not None:
            raise TxBroken(self._broken)
        if query is not None:
            check(query)
        return _Use(self)


# What the machine asks of a tx stands outside of the class, so that a handler is offered none of it.


def faults_of(tx: Tx) -> Sequence[BaseException]:
    """Return the driver errors that passed through a tx and were not undone by a savepoint, oldest first."""
    return tx._faults


def why_broken(tx: Tx) -> str | None:
    """Return why nothing of a transaction may be committed, or None."""
    return tx._broken


async def end(tx: Tx) -> bool:
    """Make a tx dead. Return whether its session is at rest, so that the next statement may be sent on it.

    A statement that a forgotten task still runs is cancelled, since the attempt is over. What the server made of it
    is anybody's guess, so nothing of such a transaction may be committed.
    """
    tx._dead = True
    if tx._busy is None:
        return True
    busy = tx._busy
    tx._broken = tx._broken or "a statement of this tx was still running when its handler returned"
    busy.cancel("the attempt that this statement belonged to is over")
    done, _ = await asyncio.wait({busy}, timeout=_RELEASE_WAIT_S)
    return bool(done) and tx._busy is None


class _Use:
    """One statement: marks the tx as busy, remembers driver errors, notices a transaction that is gone."""

    __slots__ = ("_tx",)

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def __aenter__(self) -> None:
        self._tx._busy = asyncio.current_task()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tx = self._tx
        tx._busy = None
        if error is not None:
            if not isinstance(error, asyncio.CancelledError):
                tx._faults.append(error)
        elif not tx._connection.is_in_transaction():
            tx._broken = (
                "a statement ended the attempt's transaction: what was done before it is committed or lost already; "
                "nothing of this attempt is stamped"
            )
            raise TxBroken(tx._broken)
