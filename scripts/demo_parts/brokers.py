"""Where the demo's queues are: in a virtual host of their own on a private node, or by unique names on a given broker.

Both can be counted, cut and cleaned up. A private node counts every message exactly, those in the hands of a consumer
too. A given broker shows over AMQP only what is ready to be delivered, so it is counted once the fleet has stopped and
nothing is in anybody's hands. Methods block.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from pika.exceptions import ChannelClosedByBroker  # type: ignore[import-untyped]

from deadlines import RunFailed
from foreign_client import channel_on
from servers import RabbitServer

MANAGEMENT_VARIABLE = "RABBITMQ_MANAGEMENT_URL"
_TIMEOUT_S = 10.0
_REASON = "the demo closes all connections"


class FaultLeftOut(Exception):
    """A fault cannot be brought about here; the message says why, and what would make it possible."""


class DemoBroker(Protocol):
    """A broker as the demo needs it.

    Attributes:
        url: Where fleet and shop connect to.
        counts_all: Whether `messages` counts what consumers hold, too.
    """

    url: str
    counts_all: bool

    def prepare(self) -> None:
        """Make what queues need, and find out whether the broker answers. Raises RunFailed."""

    def messages(self, queues: list[str]) -> dict[str, int]:
        """Return how many messages each queue holds."""

    def consumers(self, queue: str) -> int:
        """Return how many consumers a queue has."""

    def close_connections(self) -> int:
        """Close all connections of fleet and shop and return their number. Raises FaultLeftOut."""

    def remove(self, queues: list[str]) -> None:
        """Delete what the demo made."""


class PrivateBroker:
    """A virtual host of the demo's own on a node of this checkout."""

    counts_all = True

    def __init__(self, server: RabbitServer, vhost: str) -> None:
        self.url = server.url(vhost)
        self._server, self._vhost = server, vhost

    def prepare(self) -> None:
        """Create the virtual host."""
        self._server.add_vhost(self._vhost)

    def messages(self, queues: list[str]) -> dict[str, int]:
        """Return how many messages each queue of the virtual host holds; `queues` must be among them."""
        found = {name: counts.total for name, counts in self._server.list_queues(self._vhost).items()}
        if missing := sorted(set(queues) - found.keys()):
            raise RunFailed(f"the broker has no queue {', '.join(missing)}")
        return found

    def consumers(self, queue: str) -> int:
        """Return how many consumers a queue has."""
        return self._server.list_queues(self._vhost)[queue].consumers

    def close_connections(self) -> int:
        """Close every connection to the virtual host."""
        found = self._server.connection_count(self._vhost)
        self._server.close_all_connections(_REASON, vhost=self._vhost)
        return found

    def remove(self, queues: list[str]) -> None:
        """Delete the virtual host with its queues."""
        self._server.delete_vhost(self._vhost)


class GivenBroker:
    """A broker that the user named: the demo works on queues with its own prefix and closes only its own connections.

    Args:
        url: Its AMQP URL.
        service: What the names of the fleet's and the shop's connections begin with.
        management_url: URL of its HTTP API with user and password, if there is one.
    """

    counts_all = False

    def __init__(self, url: str, *, service: str, management_url: str | None) -> None:
        self.url = url
        self._service = service
        self._management_url = management_url

    def prepare(self) -> None:
        """Find out whether the broker answers."""
        with channel_on(self.url):
            pass

    def messages(self, queues: list[str]) -> dict[str, int]:
        """Return how many messages are ready in each queue; what consumers hold is not among them."""
        with channel_on(self.url) as channel:
            return {queue: channel.queue_declare(queue, passive=True).method.message_count for queue in queues}

    def consumers(self, queue: str) -> int:
        """Return how many consumers a queue has."""
        with channel_on(self.url) as channel:
            return int(channel.queue_declare(queue, passive=True).method.consumer_count)

    def close_connections(self) -> int:
        """Close the connections of fleet and shop through the HTTP API."""
        if self._management_url is None:
            raise FaultLeftOut(
                f"AMQP cannot close other clients' connections; set {MANAGEMENT_VARIABLE} to the broker's HTTP API "
                "(http://user:password@host:15672), or unset AMQP_URL for a private broker"
            )
        vhost = quote(unquote(urlsplit(self.url).path[1:]) or "/", safe="")
        try:
            connections = self._call("GET", f"/api/vhosts/{vhost}/connections")
            ours = [
                connection["name"]
                for connection in connections
                if connection["client_properties"].get("connection_name", "").startswith(f"{self._service}.")
            ]
            for name in ours:
                with suppress(FileNotFoundError):  # it closed by itself meanwhile
                    self._call("DELETE", f"/api/connections/{quote(name, safe='')}")
        except (OSError, ValueError) as error:
            raise FaultLeftOut(f"the broker's HTTP API did not do it: {error}") from error
        return len(ours)

    def remove(self, queues: list[str]) -> None:
        """Delete the queues, as far as they are there."""
        for queue in queues:
            with suppress(ChannelClosedByBroker), channel_on(self.url) as channel:
                channel.queue_delete(queue)

    def _call(self, method: str, path: str) -> Any:
        parts = urlsplit(self._management_url or "")
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        credentials = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        headers = {"Authorization": "Basic " + base64.b64encode(credentials.encode()).decode(), "X-Reason": _REASON}
        request = urllib.request.Request(origin + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError(path) from None
            raise
        return json.loads(text) if text else None
