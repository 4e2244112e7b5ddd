"""From a claimed message to a call of the user's handler.

This closes over one delivery and is called by the attempt machine, once for each run of an attempt: it chooses the
handler by the message's type, binds the attempt to the log lines of this task, and looks at what the handler answered.
"""

from __future__ import annotations

import asyncio

import structlog

from consumers.codec import Decoded, Malformed
from consumers.handlers import BoundHandler
from consumers.logs import bind_attempt
from consumers.registry import Routes
from consumers.telemetry import Span
from consumers.threads import BlockingTx, in_thread
from inbox import Attempt, Envelope, ExhaustionRecord, Reject, Retry, Tx

log = structlog.get_logger(__name__)


class Call:
    """One message's call.

    :param consumer: the consumer's name, for people; a message keeps the name that its key was made with.
    :param ignore_unknown: what becomes of a type without a handler: processed without effects, or rejected.
    """

    def __init__(
        self, decoded: Decoded | Malformed, routes: Routes, *, consumer: str, ignore_unknown: bool, span: Span
    ) -> None:
        self._consumer = consumer
        self._decoded = decoded
        self._routes = routes
        self._ignore_unknown = ignore_unknown
        self._span = span

    async def __call__(self, attempt: Attempt, tx: Tx) -> None:
        """Run the handler once.

        :raises Reject: the message can't be read, or its type has no handler and the policy is to reject it.
        """
        decoded = self._decoded
        if isinstance(decoded, Malformed):
            raise Reject(decoded.reason)
        message = decoded.message
        handler = self._routes.find(message.type)
        if handler is None:
            if self._ignore_unknown:
                return
            named = f"type {message.type!r}" if message.type else "a message that names no type"
            raise Reject(f"{self._consumer} has no handler for {named}")
        bind_attempt(
            consumer=self._consumer,
            message_id=message.message_id,
            type=message.type,
            attempt=attempt.number,
            claim_id=attempt.claim_id,
        )
        self._span.attempt(number=attempt.number, generation=attempt.generation, claim_id=str(attempt.claim_id))
        await call(handler, decoded.envelope(attempt), tx)


async def call(handler: BoundHandler, given: Envelope | ExhaustionRecord, tx: Tx) -> None:
    """Call a handler, in a thread if it is a plain `def`, and look at its answer. Raises what it raises.

    :raises UnexpectedAnswer: the answer shows that the work is not done.
    """
    try:
        handler.accept(await _answer(handler, given, tx))
    except (Reject, Retry):
        raise
    except Exception:
        log.warning("handler.raised", handler=handler.handler.name, exc_info=True)
        raise


async def _answer(handler: BoundHandler, given: Envelope | ExhaustionRecord, tx: Tx) -> object:
    if handler.handler.is_sync:
        blocking = BlockingTx(tx, asyncio.get_running_loop())
        return await in_thread(f"handler {handler.handler.name}", lambda: handler(given, blocking))
    answer: object = await handler(given, tx)
    return answer
