"""Handlers for fleet processes under test: they write the ledger and do what the message's body asks for."""

from __future__ import annotations

import asyncio
import os

import msgspec

from consumers import Consumer, Envelope, Reject, Tx
from tests.support.ledger import INSERT


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the handlers here.

    `fails`: how many attempts fail. `seconds`: how long each takes. `rejects`: whether it answers Reject.
    """

    fails: int = 0
    seconds: float = 0.0
    rejects: bool = False


orders = Consumer("orders")


@orders.on("order.placed")
async def place(envelope: Envelope, tx: Tx) -> None:
    """Write one line of the ledger, then do what the order asks for."""
    order = envelope.decode(Order)
    await tx.execute(INSERT, envelope.id, envelope.attempt.number, str(os.getpid()))
    if order.seconds:
        await asyncio.sleep(order.seconds)
    if order.rejects:
        raise Reject("as ordered")
    if envelope.attempt.number <= order.fails:
        raise RuntimeError("as ordered")
