"""Exit codes, and which error leads to which: scripts may rely on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from socket import gaierror


class Exit(IntEnum):
    """How a command ended."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Exit:
        """Give each code its meaning, as it stands in the help."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "all is well"
    FAILED = 1, "the command failed"
    USAGE = 2, "wrong use, configuration or handler registration"
    PARTIAL = 3, "some of it was done, some was not"
    PRECONDITION = 4, "schema, privileges, topology, server settings or connection budget do not fit"
    UNREACHABLE = 5, "broker or database cannot be reached"
    NOT_FOUND = 6, "what was asked for does not exist"
    INTERRUPTED = 130, "interrupted from the keyboard"


def explain(error: BaseException) -> tuple[Exit, str] | None:
    """Return exit code and text of an expected error; None for any other, whose traceback is worth seeing.

    Of a group of expected errors each one is said, and the code is that of the gravest: unreachable, then precondition.
    """
    if isinstance(error, BaseExceptionGroup):
        explained = [explain(inner) for inner in _leaves(error)]
        known = [each for each in explained if each is not None]
        if len(known) < len(explained):
            return None
        return max(code for code, _ in known), "\n".join(dict.fromkeys(text for _, text in known))
    code = _code(error)
    return None if code is None else (code, _text(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _code(error: BaseException) -> Exit | None:
    # Imported here: only a failed command pays for it.
    from asyncpg import exceptions as driver

    import inbox
    from consumers import errors as consuming
    from pools import PoolConfigError, PoolError, PoolOverBudget

    match error:
        case (
            consuming.ConfigError()
            | consuming.UrlRefused()
            | consuming.RegistrationError()
            | consuming.ConsumerNotFound()
            | consuming.ResourceMissing()
            | PoolConfigError()
        ):
            return Exit.USAGE
        case (
            driver.InsufficientPrivilegeError()
            | inbox.PrivilegesMissing()
            | inbox.SchemaError()
            | inbox.UnsafeServer()
            | consuming.TopologyMismatch()
            | PoolOverBudget()
        ):
            return Exit.PRECONDITION
        case inbox.ReplayMissing():
            return Exit.NOT_FOUND
        case consuming.BrokerUnavailable() | consuming.DatabaseUnavailable() | consuming.ChannelLost():
            return Exit.UNREACHABLE
        case (
            driver.PostgresConnectionError()
            | driver.CannotConnectNowError()
            | driver.TooManyConnectionsError()
            | driver.InvalidAuthorizationSpecificationError()
            | driver.InvalidCatalogNameError()
            | driver.TargetServerAttributeNotMatched()
        ):
            return Exit.UNREACHABLE
        case ConnectionError() | TimeoutError() | gaierror():
            return Exit.UNREACHABLE
        case (
            driver.InsufficientResourcesError()
            | driver.OperatorInterventionError()
            | driver.TransactionRollbackError()
            | driver.LockNotAvailableError()
            | driver.PostgresSystemError()
        ):
            # A server in trouble, not a bug: nothing of the statement was done.
            return Exit.FAILED
        case consuming.ConsumerError() | inbox.InboxError() | PoolError() | OSError():
            return Exit.FAILED
        case _:
            return None


def _text(error: BaseException) -> str:
    from consumers.errors import ConfigError, RegistrationError, TopologyMismatch
    from inbox.redaction import said

    match error:
        case ConfigError():
            facts = [("file", error.file), ("key", error.key), ("value", error.value)]
            return block("the configuration is refused", error.problem, [*facts, ("allowed", error.allowed)])
        case RegistrationError():
            facts = [("consumer", error.consumer), ("function", error.subject), ("at", error.where)]
            return block("a handler or lifespan is refused", error.problem, [*facts, ("allowed", error.allowed)])
        case TopologyMismatch():
            facts = [("differs", difference) for difference in error.differences]
            advice = "`inbox-fleet topology apply` declares what is missing; a queue that differs is yours to replace"
            return block("the broker's topology is not the configured one", None, [*facts, ("next", advice)])
        case _:
            ours = type(error).__module__.split(".")[0] in _OURS
            return block(str(error) if ours and str(error) else said(error), None, [])


def block(what: str, problem: str | None, facts: Sequence[tuple[str, str | None]]) -> str:
    """Return an error as a person reads it: one line that says what happened, then its facts, one a line.

    :param facts: name and value; those without a value are left out.
    """
    lines = [f"Error: {what}" + (f": {problem}" if problem else "")]
    lines += [f"  {name:<9}{value}" for name, value in facts if value]
    return "\n".join(lines)


_OURS = frozenset({"consumers", "inbox", "pools"})
