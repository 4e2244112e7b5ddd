"""URLs with passwords: where they come from, and how they may be shown.

A `Secret` is the only shape in which such a URL travels through the product; nothing that prints, formats or pickles
it gets the value. How it may be shown stands in `inbox.redaction`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from inbox.redaction import has_password, parts_of, redacted

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
        if parts_of(value).scheme not in self.schemes:
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
