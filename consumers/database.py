"""Reaching PostgreSQL from a command: what the driver raises, said with host and advice and without the URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from consumers.errors import DatabaseUnavailable
from consumers.secrets import Secret, host_of


@contextmanager
def reaching_database(url: Secret) -> Iterator[None]:
    """Translate failures to connect inside the block.

    :raises DatabaseUnavailable: nobody answers there, or the server does not let us in.
    """
    try:
        yield
    except (
        asyncpg.PostgresConnectionError,
        asyncpg.CannotConnectNowError,
        asyncpg.TooManyConnectionsError,
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.TargetServerAttributeNotMatched,
    ) as error:
        raise DatabaseUnavailable(
            database=host_of(url.reveal()), problem=_sentence(error), hint=f"see the URL from {url.origin}"
        ) from error
    except OSError as error:
        raise DatabaseUnavailable(
            database=host_of(url.reveal()),
            problem=error.strerror or str(error) or "no answer in time",
            hint=f"is the server up, and is the URL from {url.origin} the right one?",
        ) from error


def _sentence(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
