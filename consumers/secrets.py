"""URLs with passwords: where they come from, and how they may be shown.

A `Secret` is the only shape in which such a URL travels through the product; nothing that prints, formats or pickles
it gets the value. What people see is `redacted(url)`, which is built from the parts that are known to be harmless,
never by blanking out what looks like a secret: a URL that cannot be read with certainty is not shown at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
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
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Secret:
    """A value that must not be shown. Only `reveal` gives it away, so every place that uses it can be searched for.

    :param value: the secret text.
    :param origin: where it came from, said in its place: "environment variable DATABASE_URL".
    """

    __slots__ = ("_value", "origin")

    def __init__(self, value: str, *, origin: str) -> None:
        self._value = value
        self.origin = origin

    def reveal(self) -> str:
        """Return the secret text, for the client library that needs it."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({self.origin})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is neither copied nor pickled: hand on its origin and read it again")


class Unreadable(ValueError):
    """The URL cannot be taken apart with certainty. Its text says what is wrong, never what stands in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    scheme: str
    user: str
    has_password: bool
    hosts: str
    path: str
    parameters: tuple[tuple[str, str], ...]


def _parts(url: str) -> _Parts:
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
        raise Unreadable("an @, /, ? or # in its user or password is not percent-encoded")
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
    return _Parts(
        scheme=split.scheme, user=user, has_password=bool(colon), hosts=hosts, path=split.path, parameters=parameters
    )


def redacted(url: str) -> str:
    """Return a URL as it may be shown: scheme, user, hosts and ports, database or vhost, and harmless parameters.

    Never a password. A URL that cannot be read with certainty is reduced to its scheme, if that is clear; one of a
    scheme that this product does not use to scheme, hosts and ports, since user, path and parameters may be a token.
    """
    try:
        parts = _parts(url)
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


def shown(value: object, *, limit: int = 80) -> str:
    """Return a value as a message may show it: URLs redacted, tables and lists not opened, long texts cut."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    text = redacted(value) if "://" in value else value
    text = f'"{text}"' if text.isprintable() else repr(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def has_password(url: str) -> bool:
    """Return whether a readable URL carries a password, in front of its host or as a parameter.

    :raises Unreadable: it cannot be told.
    """
    parts = _parts(url)
    return parts.has_password or any(_SECRET_PARAMETER.search(name) for name, _ in parts.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSource:
    """Where a URL is to be read from: exactly one of an environment variable, a file, or the plain text itself.

    :param schemes: the schemes that the URL may have, the preferred one first.
    """

    schemes: tuple[str, ...]
    env: str | None = None
    file: str | None = None
    plain: str | None = None

    @property
    def origin(self) -> str:
        """Say where the URL comes from, without the URL."""
        if self.env is not None:
            return f"environment variable {self.env}"
        return f"file {self.file}" if self.file is not None else "configuration"

    def read(self, environ: Mapping[str, str] = os.environ) -> Secret:
        """Return the URL as it stands now: a rotated file or variable is seen by the next call.

        :raises ValueError: it is missing, empty, or no URL of these schemes. The text never holds any of it.
        """
        if self.env is not None:
            value = self._from_environment(self.env, environ)
        elif self.file is not None:
            value = self._from_file(Path(self.file))
        else:
            value = self.plain or ""
            if value and has_password(value):
                raise ValueError("it holds a password, which does not belong into a configuration file")
        if not value:
            raise ValueError("it is empty")
        if _parts(value).scheme not in self.schemes:
            raise ValueError(f"the URL must start with {' or '.join(scheme + '://' for scheme in self.schemes)}")
        return Secret(value, origin=self.origin)

    def _from_environment(self, name: str, environ: Mapping[str, str]) -> str:
        if not _VARIABLE.fullmatch(name):
            raise ValueError("it is not the name of an environment variable")
        if name not in environ:
            raise ValueError("this environment variable is not set")
        return environ[name].strip()

    def _from_file(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8-sig").strip()
        except OSError as error:
            raise ValueError(f"this file cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError("this file is not UTF-8 text") from None


def host_of(url: str) -> str:
    """Return hosts and ports of a readable URL, for messages about reaching it; a socket's folder counts as a host."""
    parts = _parts(url)
    return unquote(parts.hosts) or next((value for name, value in parts.parameters if name == "host"), "localhost")


def vhost_of(url: str) -> str:
    """Return the virtual host that a readable URL names, for messages about reaching it."""
    path = _parts(url).path
    if ":" in path:
        raise Unreadable("its path may be the rest of its account")
    return unquote(path[1:]) or "/"
