"""The sender: a foreign client that publishes at a steady rate, each copy until the broker has confirmed it.

A copy whose confirm was lost is published again, so the queue may hold more copies than were meant, as it is with any
sender that does not give up. It goes to the broker directly: what breaks the fleet's lines does not touch it.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from random import Random
from threading import Event, Lock, local

import pika  # type: ignore[import-untyped]
from pika.adapters.utils.connection_workflow import AMQPConnectorException  # type: ignore[import-untyped]
from pika.exceptions import AMQPError  # type: ignore[import-untyped]

from soak_parts.mail import CONSUMER, SOURCE, TYPE, Mail, mail

_LINES = 4
_TICK_S = 0.05
_RETRY_S = 0.2
_PATIENCE_S = 10.0
_MOST_WAITING = 400


class Sender:
    """Publishes mail of a seed. `published` are the messages, `sent` says how often each was sent, `confirmed` how many
    copies the broker has confirmed.

    Args:
        url: The broker's, or a relay's before it.
        queue: Where it publishes to.
        seed: Makes the messages.
        rate: Messages a second, of one copy or more each.
    """

    def __init__(self, url: str, *, queue: str, seed: int, rate: float) -> None:
        self.published: dict[str, Mail] = {}
        self.sent: Counter[str] = Counter()
        self.confirmed = 0
        self._url, self._queue, self._seed, self._rate = url, queue, seed, rate
        self._given_up = Event()
        self._own = local()
        self._counting = Lock()

    async def send(self, seconds: float, *, last_poison_s: float) -> None:
        """Publish for so many seconds, then what is left of it, and return when all of it is confirmed.

        Args:
            seconds: How long messages are begun.
            last_poison_s: When the last poison is published, in seconds from the beginning.
        """
        began, number = time.monotonic(), 0
        later: list[tuple[float, int, Mail]] = []
        waiting: set[Future[None]] = set()
        pool = ThreadPoolExecutor(max_workers=_LINES, thread_name_prefix="sender")
        try:
            while (elapsed_s := time.monotonic() - began) < seconds or later or waiting:
                while elapsed_s < seconds and number < elapsed_s * self._rate and len(waiting) < _MOST_WAITING:
                    message = mail(self._seed, number, poison=elapsed_s < last_poison_s)
                    number += 1
                    self.published[message.id] = message
                    waiting |= {pool.submit(self._publish, message) for _ in range(message.at_once)}
                    for after_s in message.later_s:
                        heapq.heappush(later, (elapsed_s + after_s, message.number, message))
                while later and later[0][0] <= elapsed_s:
                    waiting.add(pool.submit(self._publish, heapq.heappop(later)[2]))
                await asyncio.sleep(_TICK_S)
                done = {future for future in waiting if future.done()}
                waiting -= done
                for future in done:
                    future.result()
                self.confirmed += len(done)
        finally:
            self._given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _publish(self, message: Mail) -> None:
        """Publish one copy, again and again until it is confirmed. Each thread has a connection of its own."""
        body, properties = encoded(message)
        while not self._given_up.is_set():
            with self._counting:
                self.sent[message.id] += 1
            try:
                self._channel().basic_publish("", self._queue, body, properties, mandatory=True)
            except (AMQPError, AMQPConnectorException, OSError):
                with suppress(Exception):
                    self._own.connection.close()
                self._own.connection = None
                time.sleep(_RETRY_S)
            else:
                return

    def _channel(self) -> pika.adapters.blocking_connection.BlockingChannel:
        if getattr(self._own, "connection", None) is None:
            parameters = pika.URLParameters(self._url)
            parameters.socket_timeout = parameters.stack_timeout = _PATIENCE_S
            parameters.blocked_connection_timeout = _PATIENCE_S
            parameters.heartbeat = int(_PATIENCE_S)
            self._own.connection = pika.BlockingConnection(parameters)
            self._own.channel = self._own.connection.channel()
            self._own.channel.confirm_delivery()
        return self._own.channel


def encoded(message: Mail) -> tuple[bytes, pika.BasicProperties]:
    """Return body and properties of a message."""
    work_s = Random(message.number).choice([0.0, 0.001, 0.005, 0.02, 0.1])
    body = {
        "kind": message.kind.value,
        "trouble": message.trouble,
        "mended": message.mended,
        "work_s": work_s,
        "pad": "x" * message.pad,
    }
    properties = pika.BasicProperties(
        message_id=message.id,
        type=TYPE,
        app_id=SOURCE,
        content_type="application/json",
        delivery_mode=pika.DeliveryMode.Persistent.value,
        headers={"x-soak": CONSUMER, "number": message.number},
    )
    return json.dumps(body).encode(), properties
