"""How the first connection learns what the server knows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from pools import PoolSpec, SessionSettings
from pools.opening import Opener
from tests.support.eventually import eventually


class Server:
    """Stands in for a server of some major version, and notes the settings of each connection."""

    def __init__(self, major: int) -> None:
        self.major = major
        self.connections: list[dict[str, Any]] = []
        self.terminated = 0
        self.letting_in = asyncio.Event()
        self.letting_in.set()

    async def connect(self, *_: Any, **arguments: Any) -> Any:
        self.connections.append(arguments)
        await self.letting_in.wait()
        if self.major < 17 and "transaction_timeout" in arguments["server_settings"]:
            raise asyncpg.UndefinedObjectError('unrecognized configuration parameter "transaction_timeout"')
        return SimpleNamespace(
            get_server_version=lambda: SimpleNamespace(major=self.major, minor=0, micro=6),
            terminate=self._terminate,
            _transport=SimpleNamespace(get_extra_info=lambda _: None),
        )

    def _terminate(self) -> None:
        self.terminated += 1

    @property
    def knowing(self) -> list[bool]:
        """For each connection, whether it said its transaction timeout."""
        return ["transaction_timeout" in arguments["server_settings"] for arguments in self.connections]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(18)
    monkeypatch.setattr(asyncpg, "connect", server.connect)
    return server


def opener(**differences: Any) -> Opener:
    fields: dict[str, Any] = {"session": SessionSettings.for_handlers(30), "connect_timeout_s": 5.0} | differences
    return Opener(PoolSpec(name="invoices", application_name="billing-invoices", **fields))


async def test_a_server_that_knows_more_is_asked_once_more_and_never_again(server: Server) -> None:
    opening = opener()
    for _ in range(3):
        await opening.open()
    assert server.knowing == [False, True, True, True]
    assert server.terminated == 1


async def test_a_server_that_knows_no_more_keeps_its_first_connection(server: Server) -> None:
    server.major = 15
    opening = opener()
    for _ in range(3):
        await opening.open()
    assert server.knowing == [False, False, False]
    assert server.terminated == 0


async def test_lanes_that_start_together_ask_once(server: Server) -> None:
    server.letting_in.clear()
    opening = opener()
    lanes = [asyncio.create_task(opening.open()) for _ in range(5)]
    await eventually(lambda: server.connections)
    server.letting_in.set()
    await asyncio.gather(*lanes)
    assert sorted(server.knowing) == [False, True, True, True, True, True]


async def test_an_older_server_that_answers_later_is_learned_anew(server: Server) -> None:
    opening = opener()
    await opening.open()
    server.major = 15
    server.connections.clear()
    for _ in range(2):
        await opening.open()
    assert server.knowing == [True, False, False]


async def test_a_newer_server_that_answers_later_is_learned_from_its_first_connection(server: Server) -> None:
    server.major = 15
    opening = opener()
    await opening.open()
    server.major = 18
    server.connections.clear()
    for _ in range(2):
        await opening.open()
    assert server.knowing == [False, True]


async def test_who_waits_for_another_to_ask_waits_no_longer_than_the_connect_timeout(server: Server) -> None:
    server.letting_in.clear()
    opening = opener(connect_timeout_s=0.05)
    waiting = [asyncio.create_task(opening.open()) for _ in range(4)]
    await eventually(lambda: all(task.done() for task in waiting), within_s=2)
    for task in waiting:
        with pytest.raises(TimeoutError, match=r"pool invoices: .* within 0\.05 s"):
            await task
    server.letting_in.set()
    await opening.open()


async def test_every_session_bears_the_pools_name_and_waits_no_longer_than_the_server_works(server: Server) -> None:
    await opener().open()
    for arguments in server.connections:
        assert arguments["server_settings"]["application_name"] == "billing-invoices"
        assert arguments["command_timeout"] == 37
        assert "statement_cache_size" not in arguments


async def test_behind_a_transaction_pooler_only_the_name_is_said_and_no_statement_is_kept(server: Server) -> None:
    session = SessionSettings(statement_timeout_s=30, idle_in_transaction_timeout_s=40, pooler=True)
    await opener(session=session).open()
    (arguments,) = server.connections
    assert arguments["server_settings"] == {"application_name": "billing-invoices"}
    assert arguments["statement_cache_size"] == 0
