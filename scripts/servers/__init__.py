"""Private PostgreSQL and RabbitMQ servers on the loopback interface, for the demo and for the tests.

A server is a directory: everything it writes stands below it, and `server.json` in it says how to reach and end it,
so that any process of this checkout can attach to a server that another one started. Only the standard library is
used: the scripts start servers before the product is importable. Needs Linux.
"""

from servers.pair import Pair, Urls, external_urls, remove_all
from servers.postgres import PostgresServer
from servers.processes import ServerError
from servers.rabbit_control import QueueCounts
from servers.rabbitmq import RabbitServer

__all__ = [
    "Pair",
    "PostgresServer",
    "QueueCounts",
    "RabbitServer",
    "ServerError",
    "Urls",
    "external_urls",
    "remove_all",
]
