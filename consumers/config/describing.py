"""A configuration as plain data for people: defaults filled in, quantities as written, URLs without passwords."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from consumers.config.fleet import FleetConfig
from consumers.config.quantities import Seconds
from consumers.config.settings import Settings
from consumers.config.sizes import Size
from consumers.config.sizes import text as size_text
from consumers.secrets import UrlSource
from inbox.durations import text as written
from inbox.redaction import redacted


def describe(config: FleetConfig, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the effective configuration under its TOML names; `url` is redacted, and None where it cannot be read."""
    described: dict[str, Any] = _plain(config)
    described["database"] |= _url(config.database_source(), environ)
    described["broker"] |= _url(config.broker_source(), environ)
    return described


def _url(source: UrlSource, environ: Mapping[str, str]) -> dict[str, str | None]:
    try:
        url = redacted(source.read(environ).reveal())
    except ValueError:
        url = None
    return {"url_env": source.env, "url_file": source.file, "url": url}


def _plain(value: object, *, named: bool = False) -> Any:
    match value:
        case Settings():
            fields = msgspec.structs.fields(type(value))
            # The name of such a table stands in front of it, not in it.
            kept = [field for field in fields if not (named and field.name == "name")]
            return {field.encode_name: _plain(getattr(value, field.name)) for field in kept}
        case Mapping():
            return {str(key): _plain(item, named=True) for key, item in value.items()}
        case tuple():
            return [_plain(item) for item in value]
        case Seconds():
            return written(value)
        case Size():
            return size_text(value)
        case _:
            return value
