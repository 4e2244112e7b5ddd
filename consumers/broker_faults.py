"""What went wrong with a connection or a channel, said once: by class of the client's error, never by its text.

The client raises some twenty classes, and for some faults a misleading one: a virtual host that does not exist is an
"invalid frame" to it. Here each becomes what happened and what to look at, without any part of the URL's password.
"""

from __future__ import annotations

import ssl
from asyncio import CancelledError
from socket import gaierror

from aiormq import exceptions as client

from consumers.errors import BrokerUnavailable, ChannelLost

NOT_FOUND = 404
CHANNEL_CODES = frozenset({403, NOT_FOUND, 405, 406})
"""Reply codes with which the broker closes a channel and leaves its connection alone."""

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (client.ChannelAccessRefused, 403),
    (client.ChannelNotFoundEntity, NOT_FOUND),
    (client.ChannelLockedResource, 405),
    (client.ChannelPreconditionFailed, 406),
    (client.ConnectionFrameError, 501),
    (client.ConnectionSyntaxError, 502),
    (client.ConnectionCommandInvalid, 503),
    (client.ConnectionChannelError, 504),
    (client.ConnectionUnexpectedFrame, 505),
    (client.ConnectionResourceError, 506),
    (client.ConnectionNotAllowed, 530),
    (client.ConnectionNotImplemented, 540),
    (client.ConnectionInternalError, 541),
)

_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (gaierror, "the host name cannot be resolved: check it in the URL, and the DNS"),
    (ConnectionRefusedError, "nothing listens there: check that the broker runs, and host and port in the URL"),
    (ssl.SSLError, "the TLS handshake failed: check the scheme, the port and the certificates"),
    (TimeoutError, "whatever listens there does not answer: check that it is a broker, and the line to it"),
    (client.AuthenticationError, "the broker offers no way to log in that this client knows"),
    (client.ProbableAuthenticationError, "the broker refused the user or the password of the URL"),
    (client.IncompatibleProtocolError, "what listens there does not speak AMQP 0-9-1: check the port"),
    (
        client.InvalidFrameError,
        "it closed the connection while it was opened: mostly the virtual host {vhost} does not exist, "
        "or this user has no permission for it",
    ),
    (
        client.ConnectionNotAllowed,
        "check that the virtual host {vhost} exists, and that this user has permissions for it",
    ),
    (client.ConnectionResourceError, "it is at a limit: connections, channels or memory"),
    (client.ConnectionFrameError, "a frame was larger than agreed, mostly because of a message's headers"),
    (
        client.ConnectionInternalError,
        "a queue has no leader or is damaged on the broker; it may come back by itself, else look at the broker's log",
    ),
    (client.ConnectionClosed, "the broker or an operator closed the connection"),
    (OSError, "check that the broker runs, and the line to it"),
)
_UNKNOWN_HINT = "look at the broker's log"
_NO_BROKER = (
    "it closed the connection without an answer in AMQP 0-9-1",
    "is it the port of another server, such as PostgreSQL's, or one for TLS, which takes amqps://? A proxy without a "
    "broker behind it does the same",
)


def reply_code(fault: BaseException | None) -> int | None:
    """Return the code with which the broker closed a channel or a connection, None if it did not."""
    for kind, code in _CODES:
        if isinstance(fault, kind):
            return code
    if isinstance(fault, (client.ConnectionClosed, client.ChannelClosed)):
        return next((argument for argument in fault.args if isinstance(argument, int)), None)
    return None


def problem_of(fault: BaseException | None) -> str:
    """Return in words what a client's error says happened."""
    if fault is None or isinstance(fault, CancelledError):
        return "the connection ended"
    if isinstance(fault, TimeoutError) and not fault.args:
        return "no answer in time"
    code = reply_code(fault)
    text = " ".join(str(argument) for argument in fault.args if isinstance(argument, str)).strip()
    if code is not None and not text.startswith(str(code)):
        text = f"{code} {text}".strip()
    return text or type(fault).__name__


def unavailable(fault: BaseException | None, *, broker: str, vhost: str, action: str) -> BrokerUnavailable:
    """Return the error of a connection that could not be made or has ended.

    :param broker: host and port.
    :param action: what was tried: "connect", or "go on".
    """
    root: BaseException | None = fault
    # The client wraps errors of the socket in its own, and their class is the one that tells.
    while root is not None and type(root) is client.AMQPConnectionError and root.__cause__ is not None:
        root = root.__cause__
    if action == "connect" and isinstance(root, EOFError):
        problem, hint = _NO_BROKER
        return BrokerUnavailable(broker=broker, action=action, problem=problem, hint=hint)
    hint = next((hint for kind, hint in _HINTS if isinstance(root, kind)), _UNKNOWN_HINT)
    # Inside the handshake this class shows a whole frame in its text; the hint says more.
    problem = "the handshake failed" if isinstance(root, client.InvalidFrameError) else problem_of(root)
    return BrokerUnavailable(broker=broker, action=action, problem=problem, hint=hint.format(vhost=repr(vhost)))


def channel_lost(fault: BaseException | None, *, broker: str, action: str) -> ChannelLost:
    """Return the error of a channel that has ended while it was used."""
    return ChannelLost(broker=broker, action=action, problem=problem_of(fault), code=reply_code(fault))
