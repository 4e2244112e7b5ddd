"""Where a URL leads: reading and replacing the server's address in database and AMQP URLs."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

_DEFAULT_PORTS = {"postgresql": 5432, "postgres": 5432, "amqp": 5672, "amqps": 5671}


def address_of(url: str) -> tuple[str, int]:
    """Return the TCP host and port of a URL; raises ValueError for several hosts or a unix socket."""
    parts = urlsplit(url)
    if "," in parts.netloc:
        raise ValueError("the URL names several hosts; a relay stands before one")
    if parts.hostname is None:
        raise ValueError("the URL names no TCP host (a unix socket?); a relay needs one")
    return parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]


def with_address(url: str, host: str, port: int) -> str:
    """Return the URL with another address; all else stays, but no `host` or `port` in the query."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] not in ("host", "port")])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return parts._replace(netloc=f"{credentials}{at}{address}", query=query).geturl()
