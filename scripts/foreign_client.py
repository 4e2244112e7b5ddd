"""A foreign client's look at the broker, by a library that the product does not use. Functions block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pika  # type: ignore[import-untyped]
from pika.adapters.utils.connection_workflow import AMQPConnectorException  # type: ignore[import-untyped]
from pika.exceptions import AMQPConnectionError, AMQPError  # type: ignore[import-untyped]

from deadlines import RunFailed

_TIMEOUT_S = 10.0
_KEY, _GENERATION = "x-inbox-key", "x-inbox-generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One copy of a message that ended without effect. There may be several of one end.

    :param key: of the row that it names; empty if it names none.
    :param generation: in which the message ended; 0 if it does not say so.
    """

    body: bytes
    key: str
    generation: int


@contextmanager
def channel_on(url: str) -> Iterator[Any]:
    """A channel on a connection of its own, for one question: nobody has to keep it alive between two.

    Raises RunFailed if the broker does not answer.
    """
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = _TIMEOUT_S
    try:
        connection = pika.BlockingConnection(parameters)
    except (OSError, AMQPConnectionError, AMQPConnectorException) as error:
        where = f"{parameters.host}:{parameters.port}"
        raise RunFailed(f"RabbitMQ at {where}: {type(error).__name__}: {str(error) or 'no answer'}") from error
    try:
        yield connection.channel()
    finally:
        with suppress(AMQPError):
            connection.close()


def dead_letters(url: str, queue: str) -> list[DeadLetter]:
    """Return all dead letters that are ready in a queue, and leave them there.

    Args:
        url: The broker.
        queue: The dead-letter queue.

    Raises RunFailed if the broker does not answer.
    """
    found: list[DeadLetter] = []
    with channel_on(url) as channel:
        while True:
            # None is acknowledged: the queue has all of them back when the channel ends.
            method, properties, body = channel.basic_get(queue, auto_ack=False)
            if method is None:
                return found
            headers = properties.headers or {}
            found.append(DeadLetter(body=body, key=headers.get(_KEY, ""), generation=int(headers.get(_GENERATION, 0))))
