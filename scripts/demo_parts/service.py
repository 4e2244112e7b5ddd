"""The consumer that the demo runs: the example's handler as it is, watched, and made to fail where an order says so.

There are two releases of it. The first one has a bug that a few orders hit, and the second one has not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct
from orders.handlers import place

from consumers import Consumer, Envelope, Tx
from demo_parts.order_book import Bug
from demo_parts.witness import WITNESS_VARIABLE, OrderTrouble, Witness


class Trouble(Struct, frozen=True):
    """What the demo's shop puts into an order besides the order."""

    fails_once: bool = False
    bug: Bug | None = None


def release(*, has_bug: bool) -> Consumer:
    """Return one release of the consumer."""
    orders = Consumer("orders")

    @orders.lifespan
    async def witness() -> AsyncIterator[Witness]:
        """Open the file that calls are written to, once for each process."""
        with Witness(Path(os.environ[WITNESS_VARIABLE])) as opened:
            yield opened

    @orders.on("order.placed")
    async def place_watched(envelope: Envelope, tx: Tx, witness: Witness) -> None:
        """Place the order; then fail, the first time, if it is that kind of order, and each time if it hits a bug."""
        with witness.call(envelope):
            await place(envelope, tx)
            # After the effect, so that there is something to undo.
            trouble = envelope.decode(Trouble)
            if trouble.fails_once and witness.is_first_call(envelope):
                raise OrderTrouble(f"order {envelope.id} fails at its first call")
            if has_bug and trouble.bug is Bug.RAISES:
                raise OrderTrouble(f"order {envelope.id} hits the bug")
            if has_bug and trouble.bug is Bug.KILLS:
                witness.kills(envelope)
                os.kill(os.getpid(), signal.SIGKILL)

    return orders


first_release = release(has_bug=True)
fixed_release = release(has_bug=False)
