"""`scripts/demo` as a user runs it: exit code, JSON, what it refuses to call right, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from servers import RabbitServer
from tests.support.eventually import eventually
from tests.support.servers import CHECKOUT, Run
from tests.support.vhosts import Vhost

# A run takes some ten seconds on two cores, and several times that where many tests share them.
pytestmark = pytest.mark.timeout(300)
WITHIN_S = 120.0
KEYS = [
    "published", "unique", "effects", "duplicates_absorbed", "redeliveries", "failures", "exhausted", "replayed",
    "lost", "doubled", "seconds",
]  # fmt: skip


REFUSES_WHAT_WAS_REPLAYED = """
    create function refuse() returns trigger language plpgsql as $$
    begin
        if exists (select from inbox.message where message_id = new.order_id and generation > 1) then
            raise exception 'order % is refused', new.order_id;
        end if;
        return new;
    end
    $$;
    create trigger refused before insert on placed_order for each row execute function refuse();
"""


class RunningDemo:
    """One `scripts/demo.py --json`, followed line by line."""

    def __init__(self, process: asyncio.subprocess.Process, database_url: str) -> None:
        self.process = process
        self._server_url = database_url
        self.said = ""
        self.figures: list[str] = []

    async def follow(self) -> None:
        """Read what it says until its end."""
        assert self.process.stdout is not None and self.process.stderr is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_stderr(self.process.stderr))
            async for line in self.process.stdout:
                self.figures.append(line.decode())

    async def _follow_stderr(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.said += line.decode()

    async def has_said(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something, and return the match."""

        def said() -> re.Match[str] | None:
            assert self.process.returncode is None, f"it has ended:\n{self.said}"
            return re.search(pattern, self.said)

        found = await eventually(said, WITHIN_S, what=f"the demo saying {pattern!r}")
        assert found is not None
        return found

    async def ended(self, code: int) -> None:
        """Wait for its end and assert its exit code."""
        async with asyncio.timeout(WITHIN_S):
            assert await self.process.wait() == code, self.said

    @property
    def service(self) -> str:
        """The name that all which is its own begins with."""
        found = re.search(r"on queue (demo-[0-9a-f]+)\.orders", self.said)
        assert found is not None, self.said
        return found[1]

    async def connect(self, database: str = "") -> asyncpg.Connection[Any]:
        """Connect to its database, or to another one of that server."""
        name = database or self.service.replace("-", "_")
        return await asyncpg.connect(urlsplit(self._server_url)._replace(path=f"/{name}").geturl(), timeout=10)

    async def left_nothing(self, broker: RabbitServer) -> None:
        """Assert that database, virtual host and processes are gone."""
        connection = await self.connect(urlsplit(self._server_url).path[1:])
        try:
            databases = [row[0] for row in await connection.fetch("select datname from pg_database")]
        finally:
            connection.terminate()
        assert self.service.replace("-", "_") not in databases
        assert self.service not in broker.eval("rabbit_vhost:list_names().")
        assert not processes_with(self.service)


def processes_with(*arguments: str) -> list[int]:
    """Return the ids of running processes whose command line holds all of these texts."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_text(errors="replace")
            if all(argument in line for argument in arguments):
                found.append(int(process.name))
    return found


def files_of(folder: Path) -> list[str]:
    """Return the names of what stands in a folder."""
    return [file.name for file in folder.iterdir()]


Demo = Callable[..., contextlib.AbstractAsyncContextManager[RunningDemo]]


@pytest.fixture
def demo(run: Run, shared_broker: RabbitServer, tmp_path: Path) -> Demo:
    """Starts a demo on the servers of this test run, and kills it if the test ends before it."""

    @asynccontextmanager
    async def running(*options: str, orders: int, **environment: str) -> AsyncIterator[RunningDemo]:
        database_url = run.database_url()
        pair = shared_broker.directory.parent
        process = await asyncio.create_subprocess_exec(
            sys.executable, "scripts/demo.py", "--json", f"--orders={orders}", f"--pair={pair}", *options,
            cwd=CHECKOUT, env={**os.environ, "TMPDIR": str(tmp_path), "DATABASE_URL": database_url, **environment},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        started = RunningDemo(process, database_url)
        following = asyncio.create_task(started.follow())
        try:
            yield started
            async with asyncio.timeout(10):
                await following
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            following.cancel()
            await asyncio.wait({following})

    return running


async def test_each_order_has_one_effect_although_everything_was_broken_once(
    demo: Demo, shared_broker: RabbitServer, rounds: Callable[[int, int], int]
) -> None:
    orders = rounds(600, 3000)

    async with demo(orders=orders) as running:
        await running.ended(0)

    figures = json.loads(running.figures[-1])
    assert list(figures) == KEYS
    assert (figures["unique"], figures["effects"]) == (orders, orders)
    assert figures["published"] == orders * 118 // 100
    assert figures["duplicates_absorbed"] == figures["published"] - orders
    assert (figures["lost"], figures["doubled"]) == (0, 0)
    assert (figures["exhausted"], figures["replayed"]) == (3, 3)
    assert figures["failures"] >= orders // 11
    assert figures["redeliveries"] > 0
    assert 0 < figures["seconds"] < WITHIN_S
    assert re.search(r"SIGKILL to process 1 \(pid \d+\)", running.said)
    closed = re.search(r"the broker closed all (\d+) connections", running.said)
    assert closed is not None and int(closed[1]) >= 2, "each process consumes through a connection of its own"
    assert re.search(r"PostgreSQL terminated all \d+ sessions", running.said)
    ended = re.search(r"3 orders are exhausted: (.*); [\d,]+ of [\d,]+ orders are done", running.said)
    assert ended is not None
    failed = re.findall(r"(order-\d+) after \d attempts \(OrderTrouble\)", ended[1])
    assert sorted(failed) == ["order-00010", "order-00028"]
    assert re.search(r"order-00046 after \d attempts \(ProcessDied\)", ended[1])
    deaths = re.findall(r"order-00046 has killed process [12] \(pid \d+\), which starts again", running.said)
    assert len(deaths) in (3, 4, 5), "three are charged; one in company is free, and that of a first delivery uncounted"
    await running.left_nothing(shared_broker)


async def test_on_a_given_broker_too_doubled_and_lost_effects_are_found_and_a_fix_that_does_not_fix(
    demo: Demo, vhost: Vhost
) -> None:
    await vhost.declare_queue("somebody.elses")
    async with demo(orders=300, AMQP_URL=vhost.url) as running:
        await running.has_said("two processes start")
        connection = await running.connect()
        await connection.execute(REFUSES_WHAT_WAS_REPLAYED)
        await running.has_said("SIGKILL to process 1")
        await connection.execute(
            "insert into placed_order (order_id, customer, cents) select order_id, customer, cents from placed_order "
            "order by entry offset 1 limit 2"
        )
        await connection.execute("delete from placed_order where entry = (select min(entry) from placed_order)")
        await connection.close()
        await running.ended(1)

    figures = json.loads(running.figures[-1])
    assert (figures["doubled"], figures["lost"]) == (2, 4)
    assert (figures["exhausted"], figures["replayed"]) == (3, 3)
    assert "WRONG: 2 effects are doubled" in running.said
    assert "WRONG: 4 of 300 orders are lost" in running.said
    assert "WRONG: exhausted again after fix and replay: order-00010, order-00028, order-00046" in running.said
    assert "LEFT OUT: the broker's connections were not closed" in running.said
    assert list(await vhost.queues()) == ["somebody.elses"]


async def test_a_process_that_ends_by_itself_ends_the_demo_with_the_end_of_its_log(demo: Demo) -> None:
    async with demo(orders=3000) as running:
        await running.has_said("new start")
        os.kill(processes_with(running.service, "consumers.cli")[0], signal.SIGKILL)
        await running.ended(1)

    assert re.search(r"WRONG: process [12] ended by itself with exit code -9; its log ends with:", running.said)
    assert '"event":"attempt.settled"' in running.said
    assert not running.figures


async def test_an_interrupted_demo_clears_up(demo: Demo, shared_broker: RabbitServer) -> None:
    async with demo(orders=3000) as running:
        await running.has_said("SIGKILL to process 1")
        running.process.send_signal(signal.SIGINT)
        await running.ended(130)

    assert not running.figures
    await running.left_nothing(shared_broker)


async def test_what_it_keeps_stands_below_the_servers_and_goes_with_them(
    demo: Demo, shared_broker: RabbitServer, tmp_path: Path
) -> None:
    async with demo("--keep", orders=300) as running:
        await running.ended(0)

    # The database and the virtual host have to go here: the servers of the tests may outlive them.
    kept = shared_broker.directory.parent / "runs" / running.service
    connection = await running.connect("template1")
    try:
        await connection.execute(f"drop database {running.service.replace('-', '_')} with (force)")
    finally:
        await connection.close()
    await asyncio.to_thread(shared_broker.delete_vhost, running.service)
    assert f"cd {kept}" in running.said
    assert "fleet.toml" in files_of(kept)
    assert not [file for file in files_of(tmp_path) if file.startswith("inbox-fleet-")]
