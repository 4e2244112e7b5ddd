"""What a broker's URL may say: what the client reads and can use, and nothing that it would pass over in silence.

Checked once, when the URL is read: a broker that does not answer is waited for, and a URL that no client could use
would look the same for ever.
"""

from __future__ import annotations

import re
from base64 import b64decode
from urllib.parse import unquote_to_bytes

from yarl import URL

from inbox.redaction import UrlParts, parts_of

_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_HALF_ENCODED = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NAME = re.compile(r"\w{1,40}")
_OF_TLS = ("cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl")
_ALLOWED = f"auth, and with amqps:// also {', '.join(_OF_TLS)}"
_ELSEWHERE = {
    "heartbeat": "broker.heartbeat",
    "heartbeat_interval": "broker.heartbeat",
    "timeout": "broker.connect_timeout",
    "connect_timeout": "broker.connect_timeout",
    "connection_timeout": "broker.connect_timeout",
    "blocked_connection_timeout": "broker.operation_timeout",
    "name": "service.name",
    "connection_name": "service.name",
}
"""What other clients and the broker's tools read from a URL, and where it stands in the configuration."""


def check_broker_url(url: str) -> None:
    """Check a readable URL with the scheme amqp or amqps.

    :raises ValueError: the client cannot use it, or would pass over a part of it. The text never holds a value.
    """
    parts = parts_of(url)
    if _HALF_ENCODED.search(url):
        raise ValueError("it holds a % that two hexadecimal digits do not follow; % itself is written %25")
    try:
        unquote_to_bytes(url).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("what is percent-encoded in it is not UTF-8") from None
    _check_address(url, parts)
    _check_parameters(parts)


def _check_address(url: str, parts: UrlParts) -> None:
    if "," in parts.hosts:
        raise ValueError("it names several hosts, and the client connects to one: put a name or a balancer before them")
    try:
        address = URL(url)
        host, port = address.host, address.explicit_port
        (host or "").encode("idna")  # what looking the name up does to it
    except ValueError:  # of encodings, too
        raise ValueError("its host is no host name") from None
    if not host:
        raise ValueError("it names no host")
    if not _HOST.fullmatch(parts.hosts if port is None else parts.hosts.rpartition(":")[0]):
        raise ValueError("its host is no host name")
    if port == 0:
        raise ValueError("its port is 0")


def _check_parameters(parts: UrlParts) -> None:
    values: dict[str, str] = {}
    for name, value in parts.parameters:
        if name in values:
            raise ValueError(f"its parameter {name} is there twice")
        if name != "auth" and name not in _OF_TLS:
            shown = f"its parameter {name}" if _NAME.fullmatch(name) else "a parameter of it"
            key = _ELSEWHERE.get(name)
            told = f"; that is {key} in the configuration file" if key is not None else ""
            raise ValueError(f"{shown} is not one that is read{told}. Parameters that are: {_ALLOWED}")
        if name in _OF_TLS and parts.scheme != "amqps":
            raise ValueError(f"its parameter {name} is read with amqps:// alone, and this is {parts.scheme}://")
        values[name] = value
    if values.get("auth", "plain").lower() not in ("plain", "external"):
        raise ValueError("its parameter auth is neither plain nor external")
    if values.get("no_verify_ssl", "0") not in ("0", "1"):
        raise ValueError("its parameter no_verify_ssl is neither 0 nor 1")
    if "keyfile" in values and "certfile" not in values:
        raise ValueError("its parameter keyfile is read with certfile alone")
    try:
        b64decode(values.get("cadata", ""), validate=True)
    except ValueError:
        raise ValueError("its parameter cadata is not Base64") from None
