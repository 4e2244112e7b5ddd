"""Parking: how a delivery waits in the broker.

A parking queue holds each copy for one fixed step, so a short wait is never stuck behind a long one; a wait is made
of whole steps. The copy is published, confirmed, and only then is the delivery acked; a crash in between leaves two
copies with one message id, which the inbox turns into one effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from consumers.copies import parked_copy
from consumers.delivery import Delivery
from consumers.publisher import Publisher
from consumers.topology import parking_queue
from inbox.claiming import EARLY_TOLERANCE_S
from inbox.durations import text
from inbox.points import reach


class Parking:
    """The parking queues of one work queue.

    :param steps_s: the steps that have a queue, in seconds, contention step included.
    :param contention_s: how long a copy waits while another copy of its message is being worked on.
    :param publish_timeout_s: the deadline of one confirmed publish.
    """

    def __init__(
        self,
        queue: str,
        *,
        steps_s: Sequence[float],
        contention_s: float,
        publisher: Publisher,
        publish_timeout_s: float,
    ) -> None:
        self._queue = queue
        self._steps_s = tuple(sorted(steps_s))
        self._contention_s = contention_s
        self._publisher = publisher
        self._timeout_s = publish_timeout_s

    def step_s(self, remaining_s: float) -> float:
        """Return the step to wait next: the longest that fits into the remainder, or the shortest if none fits.

        A remainder that a step misses by no more than the tolerance counts as that step.
        """
        fitting = [step for step in self._steps_s if step <= remaining_s + EARLY_TOLERANCE_S]
        return fitting[-1] if fitting else self._steps_s[0]

    async def park(self, delivery: Delivery, *, remaining_s: float | None, redelivered: bool, message_id: str) -> str:
        """Put a copy of a delivery into a parking queue and return the step's name, once the broker has confirmed it.

        :param remaining_s: how long the message has to wait yet, infinity for the longest step; None: until another
            copy of it is done.
        :param redelivered: an attempt may have started on this delivery, or on an earlier one.
        :param message_id: the message's; for the copy if the sender gave it elsewhere than in the property.
        :raises PublishError: it is not known to be there: the delivery must be kept.
        :raises HeadersTooLarge, MalformedProperties: no copy of it can be made.
        """
        step = self._contention_s if remaining_s is None else self.step_s(remaining_s)
        copy = parked_copy(
            delivery.properties,
            queue=self._queue,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            redelivered=redelivered,
            message_id=message_id,
        )
        reach("park.sent")
        await self._publisher.publish(
            exchange="",
            routing_key=parking_queue(self._queue, step),
            body=delivery.body,
            properties=copy,
            message_id=message_id,
            timeout_s=self._timeout_s,
        )
        reach("park.confirmed")
        return text(step)
