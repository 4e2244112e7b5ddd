"""The order service: one effect for each order that the shop has placed.

All that a handler does in the database goes through `tx` and is committed together with the fleet's own record that
this message is done. So there is nothing here about duplicates, retries, acknowledgements or commits.
"""

from __future__ import annotations

from msgspec import Struct

from consumers import Consumer, Envelope, Tx

orders = Consumer("orders")


class OrderPlaced(Struct, frozen=True):
    """The payload of `order.placed`. Fields that are not named here are let go."""

    id: str
    customer: str
    cents: int


@orders.on("order.placed")
async def place(envelope: Envelope, tx: Tx) -> None:
    """Write the order down."""
    order = envelope.decode(OrderPlaced)  # a payload that is none is rejected at once, its bytes kept
    await tx.execute(
        "insert into placed_order (order_id, customer, cents) values ($1, $2, $3)",
        order.id,
        order.customer,
        order.cents,
    )
