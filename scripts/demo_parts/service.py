"""The consumer that the demo runs: the example's handler as it is, watched, and made to fail where an order says so."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct
from orders.handlers import place

from consumers import Consumer, Envelope, Tx
from demo_parts.witness import WITNESS_VARIABLE, OrderTrouble, Witness

orders = Consumer("orders")


class Trouble(Struct, frozen=True):
    """What the demo's shop puts into an order besides the order."""

    fails_once: bool = False


@orders.lifespan
async def witness() -> AsyncIterator[Witness]:
    """Open the file that calls are written to, once for each process."""
    with Witness(Path(os.environ[WITNESS_VARIABLE])) as opened:
        yield opened


@orders.on("order.placed")
async def place_watched(envelope: Envelope, tx: Tx, witness: Witness) -> None:
    """Place the order; then fail, the first time, if it is that kind of order."""
    with witness.call(envelope):
        await place(envelope, tx)
        # After the effect, so that there is something to undo.
        if envelope.decode(Trouble).fails_once and witness.is_first_call(envelope):
            raise OrderTrouble(f"order {envelope.id} fails at its first call")
