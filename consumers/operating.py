"""One session with the database for an operator's command: it asks neither the broker nor a running fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

import inbox
from consumers.config import FleetConfig
from consumers.database import reaching_database
from consumers.errors import DatabaseUnavailable
from consumers.secrets import Secret
from inbox.redaction import host_of

_TIMEOUT_S = 10.0
_ENDED = (asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError)


@asynccontextmanager
async def operating(config: FleetConfig, *, changes: bool) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Open a session on a schema and with a role that do for what follows; close it at the end.

    :param changes: whether anything is going to be changed, or looked at alone.
    :raises DatabaseUnavailable: it cannot be reached, ends the session, or takes no writes.
    :raises SchemaError, PrivilegesMissing: see `inbox.check_operator`.
    """
    url = config.database_url()
    with reaching_database(url):
        connection = await asyncpg.connect(
            url.reveal(),
            timeout=_TIMEOUT_S,
            server_settings={"application_name": f"{config.service.name}-operator"[:63]},
        )
    try:
        await inbox.check_operator(connection, changes=changes)
        yield connection
    except BrokenPipeError:
        raise  # of stdout: nobody reads on
    except (*_ENDED, asyncpg.InterfaceError, ConnectionError) as error:
        if not (connection.is_closed() or isinstance(error, _ENDED)):
            raise  # a mistake of ours in using the driver
        hint = "what had been committed stays so; look, and then go on"
        raise _unavailable(url, "the session was lost", hint) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise _unavailable(url, "it takes no writes", f"is it a standby? See the URL from {url.origin}") from error
    finally:
        # The server ends what it notices of by itself.
        with suppress(TimeoutError, OSError):
            await connection.close(timeout=_TIMEOUT_S)


def _unavailable(url: Secret, problem: str, hint: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(database=host_of(url.reveal()), problem=problem, hint=hint)
