"""Each of the client's errors becomes what happened and what to look at."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiormq import exceptions as client

from consumers.broker_faults import channel_lost, problem_of, reply_code, unavailable


def wrapped(fault: BaseException) -> BaseException:
    """As the client wraps errors of the socket."""
    try:
        try:
            raise fault
        except BaseException as inner:
            raise client.AMQPConnectionError(*inner.args) from inner
    except client.AMQPConnectionError as outer:
        return outer


@pytest.mark.parametrize(
    ("fault", "problem", "hint"),
    [
        (wrapped(ConnectionRefusedError(111, "Connect call failed")), "Connect call failed", "nothing listens there"),
        (wrapped(socket.gaierror(-2, "Name or service not known")), "Name or service", "cannot be resolved"),
        (wrapped(ConnectionResetError(104, "reset by peer")), "reset by peer", "the line to it"),
        (TimeoutError(), "no answer in time", "does not answer"),
        (client.ProbableAuthenticationError("ACCESS_REFUSED"), "ACCESS_REFUSED", "refused the user or the password"),
        (client.InvalidFrameError("Expected ['Connection.OpenOk'], got <Close>"), "handshake", "virtual host 'shop'"),
        (client.ConnectionNotAllowed("NOT_ALLOWED - vhost x"), "530 NOT_ALLOWED", "virtual host 'shop' exists"),
        (wrapped(asyncio.IncompleteReadError(b"", 1)), "without an answer in AMQP", "PostgreSQL"),
        (client.ConnectionInternalError("INTERNAL_ERROR"), "541 INTERNAL_ERROR", "no leader or is damaged"),
        (client.ConnectionFrameError("FRAME_ERROR"), "501 FRAME_ERROR", "headers"),
        (client.ConnectionClosed(320, "CONNECTION_FORCED - bye"), "320 CONNECTION_FORCED", "operator closed"),
        (asyncio.CancelledError(), "the connection ended", "broker's log"),
        (None, "the connection ended", "broker's log"),
    ],
)
def test_a_connection_that_failed_says_why_and_what_to_look_at(
    fault: BaseException | None, problem: str, hint: str
) -> None:
    error = unavailable(fault, broker="broker:5672", vhost="shop", action="connect")

    assert problem in error.problem
    assert hint in error.hint
    assert str(error).startswith("broker broker:5672: cannot connect: ")


def test_a_connection_that_ends_later_is_not_taken_for_another_server() -> None:
    error = unavailable(wrapped(asyncio.IncompleteReadError(b"", 1)), broker="b", vhost="/", action="go on")
    assert "PostgreSQL" not in str(error)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (client.ChannelAccessRefused("ACCESS_REFUSED"), 403),
        (client.ChannelNotFoundEntity("NOT_FOUND - no queue"), 404),
        (client.ChannelLockedResource("RESOURCE_LOCKED"), 405),
        (client.ChannelPreconditionFailed("PRECONDITION_FAILED"), 406),
        (client.ChannelClosed(504, "RPC timeout"), 504),
        (client.ChannelClosed(None, None), None),
        (client.ConnectionClosed(320, "CONNECTION_FORCED"), 320),
        (client.ChannelInvalidStateError("closed"), None),
        (TimeoutError(), None),
    ],
)
def test_a_channel_that_failed_says_with_which_code(fault: BaseException, code: int | None) -> None:
    assert reply_code(fault) == code
    assert channel_lost(fault, broker="broker", action="look").code == code


def test_a_code_is_said_once() -> None:
    assert problem_of(client.ChannelNotFoundEntity("404 NOT_FOUND")) == "404 NOT_FOUND"
    assert problem_of(client.ChannelNotFoundEntity("NOT_FOUND - no queue")) == "404 NOT_FOUND - no queue"
    assert problem_of(client.AMQPError()) == "AMQPError"
