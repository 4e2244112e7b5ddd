"""A handler that takes connections of its consumer's pool beyond that of its attempt: what `nested` is declared for."""

from __future__ import annotations

from msgspec import Struct

from consumers import Consumer, Envelope, Tx
from pools import Pool
from tests.support.ledger import INSERT


class Nesting(Struct, kw_only=True):
    """What a message's handler does.

    depth: Connections that it holds at once, beyond its attempt's.
    seconds: How long it sleeps in the database with all of them.
    """

    depth: int = 1
    seconds: float = 0.0


nested = Consumer("nested")


@nested.on("test.nested")
async def take_more(envelope: Envelope, tx: Tx, pool: Pool) -> None:
    """Write the ledger, then take one connection inside the other."""
    nesting = envelope.decode(Nesting)
    await tx.execute(INSERT, envelope.id, envelope.attempt.number, "nested")
    await _take(pool, nesting.depth, nesting.seconds)


async def _take(pool: Pool, depth: int, seconds: float) -> None:
    if not depth:
        return
    async with pool.acquire() as connection:
        await connection.execute("select pg_sleep($1)", seconds)
        await _take(pool, depth - 1, seconds)
