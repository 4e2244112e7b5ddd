"""The shop: a foreign client that publishes orders to the fleet's queue, in a process and with a library of its own.

It knows AMQP and CloudEvents and nothing of the fleet. Every copy is persistent, mandatory and confirmed, so what it
says it has published is in the queue. Several connections publish at once, and two copies of a raced order leave by two
of them. Run as `python -m demo_parts.shop`, URL in AMQP_URL; it
prints, as it goes, how many steps are done.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pika  # type: ignore[import-untyped]
from pika.adapters.utils.connection_workflow import AMQPConnectorException  # type: ignore[import-untyped]
from pika.exceptions import AMQPError  # type: ignore[import-untyped]

from demo_parts.order_book import Order, order_book, publishes

_REPORT_EVERY = 50
_TILLS = 4
_PATIENCE_S = 20.0


class Till:
    """One connection of the shop with one confirmed channel."""

    def __init__(self, url: str, queue: str, name: str) -> None:
        parameters = pika.URLParameters(url)
        parameters.client_properties = {"connection_name": name}
        parameters.blocked_connection_timeout = _PATIENCE_S
        parameters.heartbeat = int(_PATIENCE_S)
        self._queue = queue
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def publish(self, order: Order) -> None:
        """Publish one copy and return when the broker has confirmed it."""
        body, properties = (structured if order.structured else binary)(order)
        self._channel.basic_publish("", self._queue, body, properties, mandatory=True)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def binary(order: Order) -> tuple[bytes, pika.BasicProperties]:
    """Return an order as an event in binary mode: the payload is the body, the attributes are headers."""
    headers = {f"cloudEvents_{name}": value for name, value in _attributes(order).items()}
    return json.dumps(_payload(order)).encode(), _properties("application/json", headers)


def structured(order: Order) -> tuple[bytes, pika.BasicProperties]:
    """Return an order as an event in structured mode: one JSON document."""
    event = {**_attributes(order), "datacontenttype": "application/json", "data": _payload(order)}
    return json.dumps(event).encode(), _properties("application/cloudevents+json", {})


def _attributes(order: Order) -> dict[str, str]:
    return {"specversion": "1.0", "id": order.id, "source": "/shop", "type": "order.placed"}


def _payload(order: Order) -> dict[str, object]:
    return {
        "id": order.id,
        "customer": f"customer-{order.number % 97}",
        "cents": 100 + order.number,
        "fails_once": order.fails_once,
        "bug": order.bug,
    }


def _properties(content_type: str, headers: dict[str, str]) -> pika.BasicProperties:
    return pika.BasicProperties(
        content_type=content_type, headers=headers, delivery_mode=pika.DeliveryMode.Persistent.value
    )


def main() -> int:
    """Publish one stretch of the order book; return 0 when all of it is confirmed."""
    parser = argparse.ArgumentParser(prog="shop")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--orders", type=int, required=True)
    parser.add_argument("--first", type=int, required=True, help="number of the first step")
    parser.add_argument("--last", type=int, required=True, help="number of the step after the last one")
    options = parser.parse_args()
    steps = publishes(order_book(options.orders))
    tills: SimpleQueue[Till] = SimpleQueue()

    def publish(order: Order) -> None:
        till = tills.get()
        try:
            till.publish(order)
        finally:
            tills.put(till)

    try:
        for _ in range(_TILLS):
            tills.put(Till(os.environ["AMQP_URL"], options.queue, f"{options.name}.shop"))
        with ThreadPoolExecutor(max_workers=_TILLS) as clerks:
            for first in range(options.first, options.last, _REPORT_EVERY):
                last = min(first + _REPORT_EVERY, options.last)
                copies = [step.order for step in steps[first:last] for _ in range(step.at_once)]
                for _ in clerks.map(publish, copies):
                    pass  # each result is asked for, so that an error is raised here
                print(last, flush=True)
        for _ in range(_TILLS):
            tills.get().close()
    except (AMQPError, AMQPConnectorException) as error:
        # Whether the last copy is in the queue is unknown now, so no figure would be exact.
        print(f"the broker broke off: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
