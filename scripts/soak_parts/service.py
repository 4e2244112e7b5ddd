"""The consumer that the soak runs. Every effect is written before the trouble begins, so that there is one to undo."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

from msgspec import Struct

from consumers import Consumer, Envelope, ExhaustionRecord, Reject, Tx
from soak_parts.mail import CONSUMER, TYPE, Kind
from soak_parts.witness import Witness

messages = Consumer(CONSUMER)

_TOO_LONG_S = 60.0


class Body(Struct, frozen=True):
    """The body of a message.

    :param trouble: in how many attempts it makes trouble, if that ends by itself.
    :param mended: whether poison is none any more once it is replayed.
    :param work_s: how long it takes.
    """

    kind: Kind
    trouble: int
    mended: bool
    work_s: float


class Trouble(Exception):
    """The message's own fault."""


@messages.lifespan
async def witness() -> AsyncIterator[Witness]:
    """Open this process's file."""
    with Witness.opened() as opened:
        yield opened


@messages.on(TYPE)
async def handle(envelope: Envelope, tx: Tx, witness: Witness) -> None:
    """Have the effect, then make the trouble that the message is meant to make."""
    witness.began(envelope)
    body = envelope.decode(Body)
    await tx.execute(
        "insert into effect (message_id, generation, attempt) values ($1, $2, $3)",
        envelope.id,
        envelope.attempt.generation,
        envelope.attempt.number,
    )
    await asyncio.sleep(body.work_s)
    if body.mended and body.kind.is_poison and envelope.attempt.generation > 1:
        return
    first_ones = envelope.attempt.generation == 1 and envelope.attempt.number <= body.trouble
    match body.kind:
        case Kind.PLAIN:
            return
        case Kind.FLAKY:
            if first_ones:
                raise Trouble(f"{envelope.id} fails in attempt {envelope.attempt.number}")
        case Kind.SLOW:
            if first_ones:
                await asyncio.sleep(_TOO_LONG_S)
        case Kind.FAILING:
            raise Trouble(f"{envelope.id} always fails")
        case Kind.REJECTING:
            raise Reject(f"{envelope.id} can never succeed")
        case Kind.KILLING:
            witness.kills(envelope)
            os.kill(os.getpid(), signal.SIGKILL)


@messages.on_exhausted
async def tell(record: ExhaustionRecord, tx: Tx) -> None:
    """Write down that it was told."""
    await tx.execute(
        "insert into told (record_id, message_id, generation) values ($1, $2, $3)",
        record.id,
        record.envelope.id,
        record.generation,
    )
