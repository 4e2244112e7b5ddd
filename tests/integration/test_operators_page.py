"""The page for operators, from its first command to its last, on a database where it is as the page says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from inbox import Policy, replays
from inbox.messages import Filter
from inbox.outcomes import Processed
from inbox.replays import ReplayState
from tests.support.command import inbox_fleet
from tests.support.databases import Database
from tests.support.inboxes import Handler, Process, StartProcess, message
from tests.support.operators import WHY
from tests.support.pages import Block, blocks

PAGE = [block for block in blocks() if block.page.name == "operators.md"]
TWICE = Policy(max_attempts=2, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=10.0)
ABOUT = {"consumer": "invoices", "source": "shop"}


class TaxError(Exception):
    """What the handler of the page meets."""


TaxError.__module__ = "billing.handlers"


async def begun(one: Process) -> None:
    """Make what the page begins with: orders that are exhausted, and one that was processed at once."""
    taxed = {f"order-{number}": TaxError("no rate for XK") for number in range(4711, 4720)}
    for message_id, error in {**taxed, "order-4730": ValueError("no"), "order-4731": ValueError("no")}.items():
        order, failing = message(message_id, **ABOUT), Handler(error, writes=False)
        await one.attempt(order, failing, TWICE)
        await one.attempt(order, failing, TWICE, redelivered=True)
    processed = message("order-5000", **ABOUT)
    assert await one.attempt(processed, Handler(message_id="order-5000"), TWICE) == Processed(1)
    # The page shows a consumer whose dead letters are settled.
    await one.database.execute("update inbox.message set dead_letter_needed = false")
    await one.database.execute("update inbox.exhaustion set stuck = true where message_id = 'order-4713'")


async def named(database: Database, text: str) -> str:
    """Return a block with what stands for ids that only this database knows."""
    known: Mapping[str, str] = {
        "$RECORD": "select id from inbox.exhaustion where acknowledged_at is null limit 1",
        "$REPLAY": "select id from inbox.replay where service = 'billing' order by created_at desc limit 1",
    }
    for name, statement in known.items():
        if name in text:
            text = text.replace(name, str(await database.fetchval(statement)))
    if "$INTERRUPTED" in text:
        made = await replays.freeze(await database.connect(), Filter(), service="billing", limit=2, **WHY)
        assert made is not None
        text = text.replace("$INTERRUPTED", str(made.id))
    return text


async def prepared(database: Database, text: str) -> None:
    """Let a job that the page cancels not be over."""
    if "replays cancel" in text:
        await database.execute("update inbox.replay set state = 'stopped'")


async def ran(database: Database, folder: Path, block: Block) -> str:
    """Run the commands of a block, each of which has to succeed, and return what they wrote."""
    await prepared(database, block.text)
    written = ""
    for line in (await named(database, block.text)).splitlines():
        name, *arguments = shlex.split(line)
        assert name == "inbox-fleet"
        done = await inbox_fleet(*arguments, folder=folder, environ={"DATABASE_URL": database.url})
        assert done.code == 0, f"{block}: {line}\n{done.stdout}{done.stderr}"
        written += done.stdout
    return written


def shape(text: str) -> str:
    """Return text without what is another one each time: ids, times, processes."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    return re.sub(r"on \S+, pid \d+, build \S+, for \d+\.\d{3} s", "on PROCESS", text)


async def test_every_command_of_the_page_does_what_it_says(
    process: StartProcess, database: Database, tmp_path: Path
) -> None:
    (config,) = [block for block in blocks("toml") if block.page.name == "README.md"]
    (tmp_path / "fleet.toml").write_text(config.text, encoding="utf-8")
    await begun(await process())
    written = ""
    for block in PAGE:
        if block.language == "sh":
            written = await ran(database, tmp_path, block)
        elif block.language == "text":
            assert shape(written) == shape(block.text), f"{block} is not what the command before it writes"
    assert (tmp_path / "order-4711.bin").read_bytes() == message("order-4711").body
    jobs = await replays.find(await database.connect())
    states = [job.state for job in jobs]
    assert states == [ReplayState.FINISHED, ReplayState.CANCELLED, ReplayState.STOPPED]
    assert [job.replayed for job in jobs[1:]] == [8, 1]
    assert await database.fetchval("select count(*) from inbox.message where state = 'discarded'") == 1
    assert await database.fetchval("select count(*) from inbox.exhaustion where acknowledged_at is null") == 0
