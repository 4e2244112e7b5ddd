"""The HTTP door over real sockets: what it answers, what it leaves alone, and how it closes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.testing import capture_logs

from consumers.health import Health
from consumers.http import ListenFailed, application, serve
from consumers.telemetry import Telemetry

HOST = "127.0.0.1"
WITHIN_S = 10.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.body)
        return decoded


async def ask(port: int, path: str, method: str = "GET") -> Answer:
    """Ask over a connection of its own, which the server is told to close."""
    async with asyncio.timeout(WITHIN_S):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            received = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
    head, _, body = received.decode().partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    return Answer(int(first.split()[1]), headers, body)


@contextlib.asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[int]:
    """Serve on any free port until the block ends."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        task = group.create_task(serve(app, HOST, 0, started=port.set_result))
        yield await port
        task.cancel()


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry.create("billing", "1.2.3")
    yield telemetry
    telemetry.close()


@pytest.fixture
def app(health: Health, telemetry: Telemetry) -> Starlette:
    return application(health, telemetry)


async def test_readiness_follows_the_reasons(app: Starlette, health: Health) -> None:
    async with served(app) as port:
        before = await ask(port, "/readyz")
        health.started()
        started = await ask(port, "/readyz")
        health.set("database", False, "the pool cannot connect")
        outage = await ask(port, "/readyz")
        health.set("database", True)
        health.stopping()
        stopping = await ask(port, "/readyz")

    assert (before.status, before.json) == (503, {"status": "not ready", "reasons": {"process": "starting"}})
    assert (started.status, started.json) == (200, {"status": "ready", "reasons": {}})
    assert (outage.status, outage.json["reasons"]) == (503, {"database": "the pool cannot connect"})
    assert (stopping.status, stopping.json["reasons"]) == (503, {"process": "stopping"})
    assert started.headers["content-type"] == "application/json"
    assert started.headers["cache-control"] == "no-store"


async def test_an_outage_leaves_the_process_alive(app: Starlette, health: Health) -> None:
    health.started()
    health.set("database", False, "down")
    health.condition("invoices", lambda: "not consuming")
    async with served(app) as port:
        live, ready = await ask(port, "/livez"), await ask(port, "/readyz")

    assert (live.status, live.json) == (200, {"status": "alive", "reasons": {}})
    assert ready.status == 503


async def test_a_dead_task_is_told_by_name(app: Starlette, health: Health) -> None:
    task: asyncio.Task[object] = asyncio.create_task(asyncio.Event().wait())
    health.task("heartbeat", task)
    async with served(app) as port:
        assert (await ask(port, "/livez")).status == 200
        task.cancel()
        await asyncio.wait([task])
        dead = await ask(port, "/livez")

    assert (dead.status, dead.json) == (503, {"status": "dead", "reasons": {"heartbeat": "its task was cancelled"}})


async def test_a_handler_that_blocks_the_loop_delays_the_answer_and_does_not_make_it_dead(
    app: Starlette, health: Health
) -> None:
    health.started()
    async with served(app) as port:

        def probe() -> tuple[int, float]:
            began = time.monotonic()
            with urllib.request.urlopen(f"http://{HOST}:{port}/livez", timeout=WITHIN_S) as answer:
                return answer.status, time.monotonic() - began

        asking = asyncio.create_task(asyncio.to_thread(probe))
        await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251  # the fault: somebody blocks the loop
        status, took_s = await asking

    assert status == 200
    assert took_s > 0.5


async def test_metrics_are_served_as_prometheus_reads_them(app: Starlette, telemetry: Telemetry) -> None:
    telemetry.consumer("invoices", queue="q", types={"t"}).settled("processed", message_type="t", duration_s=0.1)
    async with served(app) as port:
        answer = await ask(port, "/metrics")

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'inbox_attempts_total{consumer="invoices",outcome="processed",type="t"} 1.0' in answer.body


async def test_metrics_that_cannot_be_read_are_an_answer_and_not_a_fault(
    app: Starlette, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> bytes:
        raise RuntimeError("with a secret in its text")

    async with served(app) as port:
        with monkeypatch.context() as broken, capture_logs():
            broken.setattr(telemetry, "exposition", failing)
            answer = await ask(port, "/metrics")
        again = await ask(port, "/metrics")

    assert answer.status == 503
    assert "secret" not in answer.body
    assert 'inbox_telemetry_faults_total{place="exposition"} 1.0' in again.body


@pytest.mark.parametrize("path", ["/", "/admin", "/livez/", "/docs"])
async def test_nothing_else_is_served(app: Starlette, path: str) -> None:
    async with served(app) as port:
        answer = await ask(port, path)

    assert answer.status in (404, 307)
    assert "server" not in answer.headers


async def test_probes_may_ask_for_the_head_alone_and_nobody_may_post(app: Starlette) -> None:
    async with served(app) as port:
        head, post = await ask(port, "/livez", "HEAD"), await ask(port, "/livez", "POST")

    assert (head.status, head.body) == (200, "")
    assert post.status == 405


async def test_the_port_that_was_taken_is_told_and_logged(app: Starlette) -> None:
    with capture_logs() as lines:
        async with served(app) as port:
            pass

    assert port > 0
    assert {"event": "http.listening", "log_level": "info", "host": HOST, "port": port} in lines


@pytest.mark.parametrize("given", ["taken", "foreign", "nowhere", "beyond"])
async def test_an_address_that_cannot_be_had_is_refused_by_name(app: Starlette, given: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        host, port = {
            "taken": (HOST, taken.getsockname()[1]),
            "foreign": ("192.0.2.1", 8080),
            "nowhere": ("no-such-host.invalid", 8080),
            "beyond": (HOST, 70_000),
        }[given]
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(ListenFailed) as refused:
                await serve(app, host, port)

    assert (refused.value.host, refused.value.port) == (host, port)
    assert f"{host}:{port}" in str(refused.value)
    assert "[http]" in str(refused.value)


async def test_signals_stay_with_the_process(app: Starlette) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    received = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, received.set)
    try:
        async with served(app) as port:
            signal.raise_signal(signal.SIGTERM)
            async with asyncio.timeout(WITHIN_S):
                await received.wait()
            assert (await ask(port, "/livez")).status == 200
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]


def slow_app(entered: asyncio.Event, release: asyncio.Event) -> Starlette:
    async def slow(_: Request) -> Response:
        entered.set()
        await release.wait()
        return Response("done")

    return Starlette(routes=[Route("/slow", slow)])


async def start(app: Starlette, stop_s: float) -> tuple[asyncio.Task[None], int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, HOST, 0, started=port.set_result, stop_s=stop_s))
    return task, await port


async def cancelled(task: asyncio.Task[None]) -> float:
    """Cancel, wait for the end, and return how long it took in seconds."""
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(WITHIN_S):
            await task
    return time.monotonic() - began


async def test_a_request_that_is_being_answered_may_end_after_the_cancel() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    task, port = await start(slow_app(entered, release), stop_s=WITHIN_S)
    asking = asyncio.create_task(ask(port, "/slow"))
    await entered.wait()

    ending = asyncio.create_task(cancelled(task))
    await turns()
    assert await refused(port)
    release.set()

    assert (await asking).body == "done"
    await ending


async def test_a_request_that_does_not_end_is_cut_at_the_deadline() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    task, port = await start(slow_app(entered, release), stop_s=0.1)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    await entered.wait()

    assert await cancelled(task) < 2.0

    assert await ends(reader)
    await closed(writer)


async def test_a_second_cancel_cuts_at_once() -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    task, port = await start(slow_app(entered, release), stop_s=600.0)
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    await entered.wait()
    task.cancel()
    await turns()
    assert await refused(port)

    assert await cancelled(task) < 2.0

    assert await ends(reader)
    await closed(writer)


async def test_connections_that_only_stay_open_hold_up_no_end(app: Starlette) -> None:
    task, port = await start(app, stop_s=600.0)
    silent = [await asyncio.open_connection(HOST, port) for _ in range(5)]
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in await reader.readline()

    assert await cancelled(task) < 2.0

    for silent_reader, silent_writer in silent:
        assert await ends(silent_reader)
        await closed(silent_writer)
    await closed(writer)


async def test_a_port_is_free_again_at_once(app: Starlette) -> None:
    task, port = await start(app, stop_s=0.1)
    assert (await ask(port, "/livez")).status == 200
    await cancelled(task)

    again: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    second = asyncio.create_task(serve(app, HOST, port, started=again.set_result))

    assert await again == port
    await cancelled(second)


async def test_a_serve_that_is_cancelled_before_it_listens_ends(app: Starlette) -> None:
    task = asyncio.create_task(serve(app, HOST, 0))

    assert await cancelled(task) < 2.0


async def turns() -> None:
    """Let a cancellation arrive: it takes a turn of the loop for each task on its way."""
    for _ in range(5):
        await asyncio.sleep(0)


async def refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return True
    await closed(writer)
    return False


async def ends(reader: asyncio.StreamReader) -> bool:
    """Whether the other side has closed or cut the line."""
    async with asyncio.timeout(WITHIN_S):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
