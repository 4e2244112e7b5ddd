"""Handlers that log in every way a handler may, bad ones included, and then do their work."""

from __future__ import annotations

import logging
from typing import Any

import structlog

from consumers import Consumer, Envelope, Tx
from tests.support.ledger import INSERT

BROKER_URL = "amqp://fleet:marker-of-a-password@broker.example:5672/"

log = structlog.get_logger()
work = Consumer("work")


class Unprintable:
    """An object that cannot be logged."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


@work.on("test.work")
async def handle(envelope: Envelope, tx: Tx) -> None:
    """Say a lot, fail in the first attempt of ids that begin with "fails", and write the effect."""
    log.info("handler.spoke", envelope=envelope, odd=Unprintable(), broker=BROKER_URL, text="\ud800")
    log.info("does not %d fit", "at all")
    logging.getLogger("billing").info("said %s", "plainly", extra={"odd": Unprintable()})
    logging.getLogger("billing").info("does not %d fit", "either")
    if envelope.id.startswith("fails") and envelope.attempt.number == 1:
        raise ValueError("the-text-of-an-error")
    await tx.execute(INSERT, envelope.id, envelope.attempt.number, "work")


@work.on("test.plain")
def handle_in_thread(envelope: Envelope, tx: Any) -> None:
    """Speak from a thread, and write the effect."""
    log.info("thread.spoke")
    tx.execute(INSERT, envelope.id, envelope.attempt.number, "work")
