"""The HTTP door: `/livez`, `/readyz` and `/metrics`, on the event loop that does the work, and nothing else.

A blocked loop answers late, which is what a probe should find out; how long is too long is for the probe's own deadline
and number of tries, to be set above the longest that a handler may block. It is opened first and closed last: while the
process drains it says that it is alive and not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Generator
from typing import Final

import msgspec
import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from consumers.errors import ConsumerError
from consumers.health import Health, Report
from consumers.telemetry import Telemetry

STOP_S: Final = 0.5
"""How long a request that is being answered may go on after the end was asked for."""

MAX_CONNECTIONS: Final = 512
"""Far above what probes and scrapes need: beyond it requests are refused, and a refused probe is a failed one."""

_NOT_STORED: Final = {"Cache-Control": "no-store"}

log = structlog.get_logger()


class ListenFailed(ConsumerError):
    """The HTTP door cannot be opened at this address."""

    def __init__(self, *, host: str, port: int, problem: str) -> None:
        self.host, self.port, self.problem = host, port, problem
        super().__init__(
            f"cannot listen for probes and metrics on {host}:{port}: {problem}; "
            "set another host or port under [http] (port 0 takes any free one), or stop what listens there"
        )


def application(health: Health, telemetry: Telemetry) -> Starlette:
    """Return the application that answers probes and serves metrics."""

    async def livez(_: Request) -> Response:
        return _answer(health.live(), good="alive", bad="dead")

    async def readyz(_: Request) -> Response:
        return _answer(health.ready(), good="ready", bad="not ready")

    async def metrics(_: Request) -> Response:
        try:
            body = telemetry.exposition()
        except Exception as error:
            telemetry.caught("exposition", error)
            return Response("the metrics cannot be read now\n", 503, _NOT_STORED, "text/plain")
        return Response(body, 200, _NOT_STORED, CONTENT_TYPE_PLAIN_0_0_4)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])


async def serve(
    app: Starlette,
    host: str,
    port: int,
    *,
    started: Callable[[int], None] | None = None,
    stop_s: float = STOP_S,
) -> None:
    """Serve until cancelled; then let what is being answered end, and close.

    :param host: address or name to listen on.
    :param port: 0 for any that is free.
    :param started: told the port, once connections are accepted.
    :param stop_s: how long the end may take, seconds.
    :raises ListenFailed: this address cannot be had.
    """
    listener = await _listen(host, port)
    bound: int = listener.getsockname()[1]

    def listening() -> None:
        log.info("http.listening", host=host, port=bound)
        if started is not None:
            started(bound)

    server = _Embedded(app, listening)
    try:
        try:
            await server.serve(sockets=[listener])
        finally:
            await server.close(stop_s)
    finally:
        listener.close()


class _Embedded(uvicorn.Server):
    """Uvicorn inside somebody else's loop and process: it leaves signals alone, and ends when it is cancelled."""

    def __init__(self, app: Starlette, listening: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=5,
            )
        )
        self._listening = listening

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signal handlers to the process. Uvicorn would take SIGTERM away from the drain."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._listening()

    async def close(self, deadline_s: float) -> None:
        """Stop listening, let requests end until the deadline, then cut them; at once if cancelled meanwhile."""
        for server in getattr(self, "servers", []):
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            # One that cannot be asked to end, such as after a request that was no HTTP, is cut below.
            with contextlib.suppress(Exception):
                connection.shutdown()
        try:
            if state.tasks:
                await asyncio.wait(set(state.tasks), timeout=deadline_s)
        finally:
            self._cut()
        # In this turn of the loop transports tell their protocols of the end, and what was just accepted appears.
        await asyncio.sleep(0)
        self._cut()

    def _cut(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


async def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= 65_535:  # resolvers take it modulo 65,536 without a word
            raise OverflowError("a port is a number from 0 to 65535")
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ListenFailed(host=host, port=port, problem=_problem(error)) from error
    listener.setblocking(False)
    return listener


def _problem(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _answer(report: Report, *, good: str, bad: str) -> Response:
    answer: dict[str, object] = {"status": good if report.ok else bad, "reasons": report.reasons}
    if report.notes:
        answer["notes"] = report.notes
    return Response(msgspec.json.encode(answer), 200 if report.ok else 503, _NOT_STORED, "application/json")
