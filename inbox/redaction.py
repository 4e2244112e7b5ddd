"""URLs and texts as they may be shown or stored: without a password, without a token.

What people see of a URL is built from the parts that are known to be harmless, never by blanking out what looks like a
secret: a URL that cannot be read with certainty is not shown at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

HIDDEN = "***"

_USER = re.compile(r"[A-Za-z0-9._~%+-]*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._~%-]*)(?::(\d{1,5}))?")
_SHOWN_PARAMETERS = frozenset(
    {"application_name", "connect_timeout", "database", "dbname", "heartbeat", "host", "port", "sslmode", "user"}
    | {"target_session_attrs", "timeout"}
)
_SECRET_PARAMETER = re.compile(r"pass(?!file)|secret|token", re.IGNORECASE)
_OWN_SCHEMES = frozenset({"amqp", "amqps", "postgres", "postgresql"})
_URL_IN_TEXT = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,30}://\S+")
_CLOSING = re.compile(r"(?:['\"`)}>,;:.]|(?<=['\"`])\])+$")
_PASSWORD_IN_URL = re.compile(r"[^:/]*://[^/?#@]*:.*@", re.DOTALL)
_USER_IN_URL = re.compile(r"[^:/]*://[^/?#]*@")
_TOKEN_IN_URL = re.compile(r"[?&][^=&]*(?:pass(?!file)|secret|token|key|sig|credential)[^=&]*=", re.IGNORECASE)
_PASSWORD_IN_TEXT = re.compile(
    r"(password['\"]?\s*[=:]\s*)('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s,;)&]+)", re.IGNORECASE
)


class Unreadable(ValueError):
    """The URL cannot be taken apart with certainty. Its text says what is wrong, never what stands in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlParts:
    """A URL that was taken apart with certainty."""

    scheme: str
    user: str
    has_password: bool
    hosts: str
    path: str
    parameters: tuple[tuple[str, str], ...]


def parts_of(url: str) -> UrlParts:
    """Take a URL apart. Raises Unreadable."""
    try:
        split = urlsplit(url)
    except ValueError:
        raise Unreadable("the brackets of its host do not match") from None
    if not split.scheme or "://" not in url:
        raise Unreadable("it does not start with a scheme and ://")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise Unreadable("it holds blanks or control characters")
    # An @, /, ? or # in the password that was not percent-encoded shifts every later part: nothing can be trusted.
    if "@" in split.path or "@" in split.query or split.fragment or "#" in url or split.netloc.count("@") > 1:
        raise Unreadable("an @, /, ? or # in its user, password or path is not percent-encoded")
    account, _, hosts = split.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    if not _USER.fullmatch(user):
        raise Unreadable("its user holds characters that must be percent-encoded")
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        if match is None or int(match[2] or 0) > 65535:
            raise Unreadable("its host and port are not of the form host:port")
    try:
        parameters = tuple(parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query)))
    except ValueError:
        raise Unreadable("its parameters are not of the form name=value&name=value") from None
    ports = [port for name, value in parameters if name == "port" for port in value.split(",")]
    if not all(port.isdecimal() and int(port) <= 65535 for port in ports):
        raise Unreadable("its parameter port is not a number up to 65535")
    return UrlParts(
        scheme=split.scheme, user=user, has_password=bool(colon), hosts=hosts, path=split.path, parameters=parameters
    )


def redacted(url: str) -> str:
    """Return a URL as it may be shown: scheme, user, hosts and ports, database or vhost, and harmless parameters.

    Never a password. A URL that cannot be read with certainty is reduced to its scheme, if that is clear; one of a
    scheme that this product does not use to scheme, hosts and ports, since user, path and parameters may be a token.
    """
    try:
        parts = parts_of(url)
        if ":" in parts.path:
            # A / in the user that was not percent-encoded makes a path of a password.
            raise Unreadable("its path may be the rest of its account")
    except Unreadable:
        scheme = re.match(r"([a-z][a-z0-9+]{0,15})://", url)
        return f"{scheme[1]}://{HIDDEN}" if scheme else HIDDEN
    if parts.scheme not in _OWN_SCHEMES:
        account = f"{HIDDEN}@" if parts.user or parts.has_password else ""
        rest = f"/{HIDDEN}" if parts.path.strip("/") or parts.parameters else parts.path
        return f"{parts.scheme}://{account}{parts.hosts}{rest}"
    account = f"{parts.user}:{HIDDEN}@" if parts.has_password else f"{parts.user}@" if parts.user else ""
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='/:.,-') if name in _SHOWN_PARAMETERS else HIDDEN}"
        for name, value in parts.parameters
    )
    return f"{parts.scheme}://{account}{parts.hosts}{parts.path}{'?' + query if query else ''}"


def without_secrets(text: str) -> str:
    """Return text in which no URL shows a password or a token, and no `password=` shows what follows it."""
    if "://" in text:
        text = _URL_IN_TEXT.sub(_url_in_text, text)
    if "assword" in text or "ASSWORD" in text:
        text = _PASSWORD_IN_TEXT.sub(rf"\g<1>{HIDDEN}", text)
    return text


def said(error: BaseException) -> str:
    """Return class and text of an error of users' code, without secrets: it may quote a URL of any kind."""
    try:
        text = without_secrets(str(error))
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    except Exception as broken:
        return f"{type(error).__name__} (it cannot be printed: {type(broken).__name__})"


def _url_in_text(match: re.Match[str]) -> str:
    found = match[0]
    # What closes a quotation or a sentence is none of the URL's; behind a ? it might be the end of a secret.
    url = found if "?" in found else _CLOSING.sub("", found)
    of_others = url.partition("://")[0].lower() not in _OWN_SCHEMES
    if _PASSWORD_IN_URL.match(url) or _TOKEN_IN_URL.search(url) or (of_others and _USER_IN_URL.match(url)):
        return redacted(url) + found[len(url) :]
    return found


def has_password(url: str) -> bool:
    """Return whether a readable URL carries a password, in front of its host or as a parameter.

    :raises Unreadable: it cannot be told.
    """
    parts = parts_of(url)
    return parts.has_password or any(_SECRET_PARAMETER.search(name) for name, _ in parts.parameters)


def host_of(url: str) -> str:
    """Return hosts and ports of a readable URL, for messages about reaching it; a socket's folder counts as a host."""
    parts = parts_of(url)
    return unquote(parts.hosts) or next((value for name, value in parts.parameters if name == "host"), "localhost")


def vhost_of(url: str) -> str:
    """Return the virtual host that a readable URL names, for messages about reaching it."""
    path = parts_of(url).path
    if ":" in path:
        raise Unreadable("its path may be the rest of its account")
    return unquote(path[1:]) or "/"
