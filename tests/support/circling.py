"""A consumer whose messages all go round through the parking queues, and that writes down how each of them looked.

Each message fails in its first `ROUNDS` attempts, then asks for a wait that leaves it in the longest step's queue, and
is processed by the attempt after that. What a call saw stands in `CALLS_FILE`, one line for each.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

from consumers import Consumer, Envelope, Retry, Tx
from tests.support.ledger import INSERT

ROUNDS = 25
LONG_S = 3600.0

_OF_THE_BROKER = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count")

circling = Consumer("circling")


@circling.on("*")
async def go_round(envelope: Envelope, tx: Tx) -> None:
    """Fail, then wait for long, then succeed."""
    _note(envelope)
    await tx.execute(INSERT, envelope.id, envelope.attempt.number, "circling")
    if envelope.attempt.number <= ROUNDS:
        raise RuntimeError("as the test wished")
    if envelope.attempt.number == ROUNDS + 1:
        raise Retry(after=LONG_S)


def seen(envelope: Envelope) -> dict[str, object]:
    """Return all that a handler can see of its sender's message: not the attempt, nor what the broker writes in."""
    return {
        "source": envelope.source,
        "type": envelope.type,
        "bytes": len(envelope.data),
        "body": sha256(envelope.data).hexdigest(),
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "headers": repr(sorted(item for item in envelope.headers.items() if not item[0].startswith(_OF_THE_BROKER))),
        "content_type": envelope.content_type,
        "time": str(envelope.time),
        "correlation_id": envelope.correlation_id,
    }


def _note(envelope: Envelope) -> None:
    line = {"id": envelope.id, "attempt": envelope.attempt.number, "saw": seen(envelope)}
    with Path(os.environ["CALLS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
