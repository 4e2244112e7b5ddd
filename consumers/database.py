"""Reaching PostgreSQL: what the driver raises, said with host and advice and without the URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from consumers.errors import DatabaseUnavailable, UrlRefused
from consumers.secrets import Secret
from inbox.redaction import host_of

_NOT_LET_IN = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.TargetServerAttributeNotMatched,
)
# The server goes while a session is in use; the driver has words of its own for what it meets then.
_SESSION_LOST = (
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_WRONG_SETTING = (
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidParameterValueError,
    asyncpg.CantChangeRuntimeParamError,
)


@contextmanager
def reaching_database(url: Secret) -> Iterator[None]:
    """Translate failures to connect, and to stay connected, inside the block.

    :raises DatabaseUnavailable: nobody answers there, the server does not let us in, or the session is lost.
    :raises UrlRefused: driver or server do not know what a parameter of the URL says.
    """
    try:
        yield
    except asyncpg.ConnectionDoesNotExistError as error:
        hint = f"the server ended it, or what listens there is no PostgreSQL: see the URL from {url.origin}"
        raise _unavailable(url, _sentence(error), hint) from error
    except _NOT_LET_IN as error:
        raise _unavailable(url, _sentence(error), f"see the URL from {url.origin}") from error
    except (*_WRONG_SETTING, asyncpg.InsufficientPrivilegeError) as error:
        if error.severity_en != "FATAL":
            raise  # an answer to a statement; what a server says while a session begins is fatal
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            raise _unavailable(url, _sentence(error), f"see the URL from {url.origin}") from error
        hint = "the driver hands what it does not know to the server, as a setting: is it misspelt?"
        raise UrlRefused(origin=url.origin, problem=_sentence(error), hint=hint) from error
    except (asyncpg.ClientConfigurationError, UnicodeError) as error:
        # A host name that no DNS could have is a matter of its encoding.
        problem = "its host is no host name" if isinstance(error, UnicodeError) else _sentence(error)
        raise UrlRefused(origin=url.origin, problem=problem, hint="see what the driver takes") from error
    except _SESSION_LOST as error:
        raise _unavailable(url, "the session was lost", "the server, or something on the way, ended it") from error
    except OSError as error:
        raise _unavailable(url, *_advice(error, url)) from error


def _advice(error: OSError, url: Secret) -> tuple[str, str]:
    problem = error.strerror or str(error) or "no answer in time"
    if type(error) is ConnectionError:
        # The driver's own word, for an answer or an end that it does not expect.
        return (
            "what listens there does not answer as PostgreSQL does",
            "is it another server's port, such as RabbitMQ's, or a proxy without a server behind it? A PostgreSQL "
            f"without TLS looks the same where sslmode asks for it: see the URL from {url.origin}",
        )
    if isinstance(error, FileNotFoundError):
        return problem, f"is the socket, or the file of a certificate, where the URL from {url.origin} says?"
    return problem, f"is the server up, and is the URL from {url.origin} the right one?"


def _unavailable(url: Secret, problem: str, hint: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(database=host_of(url.reveal()), problem=problem, hint=hint)


def _sentence(error: Exception) -> str:
    # The driver prints objects of its own in some of its texts.
    return re.sub(r"<[^<>]*>", "…", str(error).splitlines()[0]) if str(error) else type(error).__name__
