"""Messages that are too large to go on record: told apart here, and put whole into the queue for dead letters.

The row of such a message cannot owe its dead letter, as other rows do: it does not have the bytes. So the dead letter
goes first, mandatory and confirmed, and only then may there be a row, and after it an ack. A message whose dead letter
is not known to be there stays in the broker; so does every message of a consumer that wants no dead letters, since
nothing else would keep its bytes.
"""

from __future__ import annotations

import structlog

from consumers.config.sizes import text
from consumers.errors import HeadersTooLarge, MalformedProperties, PublishError
from consumers.owed_copies import dead_letter_before
from consumers.plan import ConsumerPlan
from consumers.publisher import Publisher
from consumers.telemetry import ConsumerTelemetry
from consumers.topology import dead_letter_queue
from inbox import Message, State
from inbox.oversize import REASON, Keep, NotKept, stored_bytes
from inbox.points import reach

log = structlog.get_logger(__name__)


class Oversize:
    """What one consumer does about messages that are too large.

    :param publish_timeout_s: the deadline of one confirmed publish.
    """

    def __init__(
        self, plan: ConsumerPlan, *, publisher: Publisher, publish_timeout_s: float, telemetry: ConsumerTelemetry
    ) -> None:
        self._plan = plan
        self._publisher = publisher
        self._timeout_s = publish_timeout_s
        self._telemetry = telemetry

    def keeper(self, message: Message) -> Keep | None:
        """Return what keeps a message that is too large to be begun, or None if it is not."""
        return self._keep if stored_bytes(message) > self._plan.settings.max_stored_bytes else None

    async def _keep(self, message: Message) -> None:
        work, wanted = self._plan.settings.queue, self._plan.settings.dead_letters
        queue = dead_letter_queue(work)
        try:
            if not wanted:
                raise NotKept("dead_letters = false: no queue would keep its bytes")
            properties = dead_letter_before(message, state=State.REJECTED, reason=REASON, queue=work)
            await self._publish(message, properties, queue)
        except (NotKept, PublishError, HeadersTooLarge, MalformedProperties, ValueError) as error:
            self._warn("message.not_kept", message, problem=str(error))
            raise NotKept(str(error)) from error
        self._warn("message.too_large", message, queue=queue)

    async def _publish(self, message: Message, properties: bytes, queue: str) -> None:
        reach("oversize.sent")
        with self._telemetry.publishing(queue, traceparent=message.traceparent):
            await self._publisher.publish(
                exchange="",
                routing_key=queue,
                body=message.body,
                properties=properties,
                message_id=message.message_id,
                timeout_s=self._timeout_s,
            )

    def _warn(self, event: str, message: Message, **facts: str) -> None:
        log.warning(
            event,
            consumer=self._plan.name,
            message_id=message.message_id,
            key=str(message.key),
            stored_bytes=stored_bytes(message),
            max_stored_bytes=text(self._plan.settings.max_stored_bytes),
            **facts,
        )
