"""A replay whose process dies anywhere is gone on with, and each message is replayed once and has one effect."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from consumers.cli.exits import Exit
from inbox import replays
from inbox.outcomes import Duplicate, Processed
from inbox.points import REPLAY_POINTS
from inbox.replays import ReplayState
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import NO_PAUSE, Handler, Process, message, process_on, standing
from tests.support.ledger import create_ledger
from tests.support.operators import Desk, exhausted

Rounds = Callable[[int, int], int]

REPLAY = ("messages", "replay", "--consumer", "billing", "--all", "--reason", "repaired", "--by", "ann@desk")
MESSAGES = 5
TRAPPED = "tests.support.fleet_main"


@pytest_asyncio.fixture
async def one(database: Database) -> AsyncIterator[Process]:
    """A process of the fleet, which tries what the test hands it."""
    await create_ledger(database)
    async with process_on(database, "lanes") as started:
        yield started


@pytest.fixture
def desk(tmp_path: Path, database: Database) -> Desk:
    return Desk(tmp_path, database)


async def killed(desk: Desk, database: Database, *arguments: str, at: str) -> None:
    """Run the command until it kills itself, and wait until the server has noticed."""
    async with asyncio.timeout(60), desk.running(f"--kill-at={at}", *arguments, module=TRAPPED) as doomed:
        assert (await doomed.ended()).code == -signal.SIGKILL

    async def gone() -> bool:
        return not await database.sessions("billing-operator")

    await eventually(gone, what="the end of the dead runner's session")


async def processed_once(database: Database, one: Process, *ids: str) -> None:
    """Bring a copy of each message, and assert that it was replayed once and has one effect."""
    for each in ids:
        copy = message(each)
        outcome = await one.attempt(copy, Handler(message_id=each), NO_PAUSE, redelivered=True)
        assert outcome in (Processed(1), Duplicate())
        assert (await standing(database, copy)).effects == 1
    counts = await database.fetch(
        "select message_id, count(*) from inbox.history where event = 'replayed' group by message_id order by 1"
    )
    assert [tuple(row) for row in counts] == [(each, 1) for each in sorted(ids)]


@pytest.mark.parametrize("point", [*REPLAY_POINTS, "replay.item_sent:4", "replay.item_committed:4"])
async def test_a_replay_that_is_killed_at_a_named_point_is_gone_on_with(
    point: str, one: Process, database: Database, desk: Desk, rounds: Rounds
) -> None:
    ids: list[str] = []
    for number in range(rounds(3, 10)):
        batch = [f"m-{number}-{each}" for each in range(MESSAGES)]
        ids += batch
        await exhausted(one, *batch)
        await killed(desk, database, *REPLAY, at=point)
        left, *_ = await replays.find(await database.connect())
        assert not left.is_run
        *_, ended = await desk.lines("replays", "resume", str(left.id))
        assert (ended["state"], ended["replayed"], ended["total"]) == ("finished", MESSAGES, MESSAGES)
        await processed_once(database, one, *ids)


async def test_a_replay_that_dies_again_and_again_ends(
    one: Process, database: Database, desk: Desk, rounds: Rounds
) -> None:
    ids = [f"m-{number}" for number in range(rounds(4, 12))]
    await exhausted(one, *ids)
    await killed(desk, database, *REPLAY, at="replay.item_sent")
    (left,) = await replays.find(await database.connect())
    for _ in ids[1:]:
        # The statement of the one before may have committed, or not.
        await killed(desk, database, "replays", "resume", str(left.id), at="replay.item_committed")
        left = await replays.get(await database.connect(), left.id)
        if not left.pending:
            break
    await desk.run("replays", "resume", str(left.id))
    done = await replays.get(await database.connect(), left.id)
    assert (done.state, done.replayed) == (ReplayState.FINISHED, len(ids))
    await processed_once(database, one, *ids)


async def test_copies_that_come_while_the_command_replays_have_one_effect(
    one: Process, database: Database, desk: Desk
) -> None:
    ids = [f"m-{number}" for number in range(20)]
    await exhausted(one, *ids)
    done: set[str] = set()
    async with asyncio.timeout(60), desk.running(*REPLAY, "--rate", "20/s") as replay:
        while len(done) < len(ids):
            runs = replay.runs
            before = len(done)
            for each in ids:
                outcome = await one.attempt(message(each), Handler(message_id=each), NO_PAUSE, redelivered=True)
                if isinstance(outcome, Processed):
                    assert each not in done
                    done.add(each)
            assert runs or len(done) > before or len(done) == len(ids), "a message was left behind"
        assert (await replay.ended()).code == Exit.OK
    await processed_once(database, one, *ids)
