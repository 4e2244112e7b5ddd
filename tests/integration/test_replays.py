"""Replay jobs on a real database: a frozen set, one commit for each message, and at most one effect of each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inbox import ReplayBusy, ReplayMissing, ReplayOver, replay_job, replays
from inbox.messages import Filter
from inbox.outcomes import Ended, Processed
from inbox.replay_job import FEWEST, WINDOW, Progress
from inbox.replays import ItemOutcome, Replay, ReplayState
from inbox.states import State
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import NO_PAUSE, Handler, StartProcess, message, standing
from tests.support.operators import WHY, exhausted, frozen, many_exhausted, rejected, row_of, waiting


async def run(database: Database, replay: Replay, **options: Any) -> Replay:
    return await replay_job.run(await database.connect(), replay.id, **{"runner": "ann@desk (pid 1)", **options})


async def outcomes(database: Database, replay: Replay) -> list[tuple[str, str, str | None]]:
    items = await replays.items(await database.connect(), replay.id, limit=1_000)
    return [(item.message_id, item.outcome.value, item.detail) for item in items]


async def test_a_replayed_message_waits_in_its_next_generation_and_its_copy_is_owed(
    process: StartProcess, database: Database
) -> None:
    (failed,) = await exhausted(await process(), "m-1")
    done = await run(database, await frozen(database))
    assert (done.state, done.total, done.replayed, done.pending) == (ReplayState.FINISHED, 1, 1, 0)
    row = await row_of(database, failed.key)
    assert (row.state, row.generation, row.attempts, row.reason) == (State.WAITING, 2, 0, None)
    assert row.copy_needed and not row.dead_letter_needed
    history = await database.fetchrow("select * from inbox.history")
    assert history is not None
    assert (history["event"], history["was"], history["generation"]) == ("replayed", "exhausted", 1)
    assert (history["by_whom"], history["reason"], history["replay_id"]) == (*WHY.values(), done.id)


async def test_a_replayed_message_has_a_fresh_budget_and_one_effect(process: StartProcess, database: Database) -> None:
    one = await process()
    (failed,) = await exhausted(one, "m-1")
    done = await run(database, await frozen(database))
    assert await one.attempt(failed, Handler(), NO_PAUSE, redelivered=True) == Processed(1)
    assert (await standing(database, failed)).effects == 1
    after = await replays.get(await database.connect(), done.id)
    assert (after.processed, after.failed_again) == (1, 0)
    assert await database.fetchval("select count(*) from inbox.exhaustion where acknowledged_at is null") == 1


async def test_a_message_that_killed_its_process_runs_alone_after_a_replay(
    process: StartProcess, database: Database
) -> None:
    (failed,) = await exhausted(await process(), "m-1")
    await database.execute("update inbox.message set suspect = true, free_death_spent = true")
    await run(database, await frozen(database))
    row = await database.fetchrow("select suspect, free_death_spent from inbox.message where key = $1", failed.key)
    assert row is not None and (row["suspect"], row["free_death_spent"]) == (True, False)


async def test_the_set_is_frozen_when_the_job_is_made(process: StartProcess, database: Database) -> None:
    one = await process()
    await exhausted(one, "m-1", "m-2")
    made = await frozen(database)
    await exhausted(one, "m-3")
    assert (await run(database, made)).replayed == 2
    assert (await row_of(database, message("m-3").key)).state is State.EXHAUSTED


async def test_the_filter_chooses_what_has_ended_and_nothing_else(process: StartProcess, database: Database) -> None:
    one = await process()
    await exhausted(one, "m-1", "m-2", "m-3")
    await exhausted(one, "m-4", error=KeyError("x"))
    await rejected(one, "m-5")
    await waiting(one, "m-6")

    async def chosen(*, limit: int | None = None, **conditions: Any) -> list[str]:
        return [item[0] for item in await outcomes(database, await frozen(database, Filter(**conditions), limit=limit))]

    assert await chosen() == ["m-1", "m-2", "m-3", "m-4", "m-5"]
    assert await chosen(limit=2) == ["m-1", "m-2"]
    assert await chosen(states=frozenset({State.REJECTED, State.WAITING})) == ["m-5"]
    assert await chosen(error_classes=frozenset({"KeyError"})) == ["m-4"]
    assert await chosen(keys=frozenset({message("m-2").key, message("m-6").key})) == ["m-2"]
    ended = (await row_of(database, message("m-3").key)).changed_at
    assert await chosen(since=ended) == ["m-3", "m-4", "m-5"]
    assert await chosen(until=ended, consumer="billing", types=frozenset({"order.placed"})) == ["m-1", "m-2"]


async def test_a_job_of_nothing_is_not_made(process: StartProcess, database: Database) -> None:
    await waiting(await process(), "m-1")
    assert await replays.freeze(await database.connect(), Filter(), service="billing", **WHY) is None
    assert await database.fetchval("select count(*) from inbox.replay") == 0


@pytest.mark.parametrize(
    "options", [{"reason": " "}, {"by_whom": ""}, {"rate": 0}, {"rate": float("inf")}, {"stop_ratio": 1}]
)
async def test_a_job_without_a_reason_a_name_or_a_sane_pace_is_refused(
    database: Database, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        await replays.freeze(await database.connect(), Filter(), service="billing", **{**WHY, **options})


async def test_what_changed_after_the_freeze_is_skipped_with_the_reason(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await exhausted(one, "m-1", "m-2", "m-3", "m-4")
    made, other = await frozen(database), await frozen(database, Filter(keys=frozenset({message("m-1").key})))
    await run(database, other)
    await one.attempt(message("m-1"), Handler(ValueError("no"), writes=False), NO_PAUSE, redelivered=True)
    await database.execute("delete from inbox.message where message_id = 'm-2'")
    await database.execute("insert into inbox.receipt (key) values ($1)", message("m-3").key)
    done = await run(database, made)
    assert (done.replayed, done.skipped) == (1, 3)
    assert await outcomes(database, made) == [
        ("m-1", "skipped", "it was replayed meanwhile, and is waiting"),
        ("m-2", "skipped", "it is not on record any more"),
        ("m-3", "skipped", "it was processed meanwhile"),
        ("m-4", "replayed", None),
    ]


async def test_a_message_whose_bytes_are_not_kept_in_full_is_skipped(process: StartProcess, database: Database) -> None:
    await rejected(await process(), "m-1")
    await database.execute("update inbox.message set whole_bytes = 17825792, whole_sha256 = sha256('')")
    made = await frozen(database)
    assert (await run(database, made)).skipped == 1
    ((_, _, detail),) = await outcomes(database, made)
    assert detail is not None and "12 of its 17825792 bytes are on record" in detail


async def test_a_message_that_somebody_works_on_is_tried_again_and_then_skipped(
    process: StartProcess, database: Database
) -> None:
    await exhausted(await process(), "m-1", "m-2")
    made = await frozen(database)
    holder = await database.connect()
    await holder.execute("select pg_advisory_lock(inbox.lock_id($1))", message("m-1").key)
    running = asyncio.create_task(run(database, made))

    async def second_is_reached() -> bool:
        return (await outcomes(database, made))[0][1] != "pending"

    await eventually(second_is_reached, what="the first item being given up")
    assert (await running).replayed == 1
    await holder.execute("select pg_advisory_unlock_all()")
    assert (await outcomes(database, made))[0] == ("m-1", "skipped", "a copy of it is being worked on")


async def test_what_the_database_refuses_fails_alone(process: StartProcess, database: Database) -> None:
    await exhausted(await process(), "m-1", "m-2")
    await database.execute(
        "create function refuse() returns trigger language plpgsql as "
        "$$ begin if new.message_id = 'm-1' then raise 'not this one'; end if; return new; end $$;"
        "create trigger refuse before insert on inbox.history for each row execute function refuse()"
    )
    made = await frozen(database)
    done = await run(database, made)
    assert (done.state, done.replayed, done.failed) == (ReplayState.FINISHED, 1, 1)
    assert "not this one" in ((await outcomes(database, made))[0][2] or "")
    assert (await row_of(database, message("m-1").key)).state is State.EXHAUSTED


async def test_a_second_runner_is_refused_by_name(process: StartProcess, database: Database) -> None:
    await exhausted(await process(), "m-1", "m-2")
    made = await frozen(database, rate=0.01)
    first = asyncio.create_task(run(database, made, runner="ann@desk (pid 7)"))

    async def begun() -> bool:
        return (await replays.get(await database.connect(), made.id)).replayed == 1

    await eventually(begun, what="the first item being replayed")
    with pytest.raises(ReplayBusy, match=r"ann@desk \(pid 7\)"):
        await run(database, made)
    assert (await replays.get(await database.connect(), made.id)).is_run
    first.cancel()
    await asyncio.wait([first])
    after = await replays.get(await database.connect(), made.id)
    assert (after.state, after.is_run, after.pending) == (ReplayState.RUNNING, False, 1)


async def test_an_interrupted_job_goes_on_where_it_was(process: StartProcess, database: Database) -> None:
    await exhausted(await process(), *(f"m-{number}" for number in range(6)))
    made = await frozen(database)
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(database, made, progress=interrupt)
    after = await run(database, made, progress=seen.append)
    assert (after.state, after.replayed) == (ReplayState.FINISHED, 6)
    items = [each.item for each in seen if each.item is not None]
    assert [item.position for item in items] == [1, 2, 3, 4, 5, 6]
    assert await database.fetchval("select count(*) from inbox.history where event = 'replayed'") == 6


async def test_cancelling_ends_a_waiting_job_soon_and_for_good(process: StartProcess, database: Database) -> None:
    await exhausted(await process(), "m-1", "m-2", "m-3")
    made = await frozen(database, rate=0.001)
    running = asyncio.create_task(run(database, made))

    async def begun() -> bool:
        return (await replays.get(await database.connect(), made.id)).replayed == 1

    await eventually(begun, what="the first item being replayed")
    await replays.cancel(await database.connect(), made.id, by_whom="bob")
    async with asyncio.timeout(10):
        done = await running
    assert (done.state, done.cancelled_by, done.replayed, done.pending) == (ReplayState.CANCELLED, "bob", 1, 2)
    for refused in (run(database, made), replays.cancel(await database.connect(), made.id, by_whom="bob")):
        with pytest.raises(ReplayOver, match="is cancelled: what is left of it needs another one"):
            await refused


async def test_a_finished_job_runs_again_as_nothing(process: StartProcess, database: Database) -> None:
    await exhausted(await process(), "m-1")
    made = await frozen(database)
    first = await run(database, made)
    assert await run(database, made) == first
    for refused in (
        replays.change(await database.connect(), made.id, rate=1.0),
        replays.cancel(await database.connect(), made.id, by_whom="bob"),
    ):
        with pytest.raises(ReplayOver, match="is finished: nothing of it is left to replay"):
            await refused


async def test_an_unknown_job_is_named(database: Database) -> None:
    with pytest.raises(ReplayMissing, match=str(message().key)):
        await replay_job.run(await database.connect(), message().key, runner="ann")


async def test_a_job_stops_when_too_many_fail_again_and_can_be_resumed(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    failing = await exhausted(one, *(f"m-{number}" for number in range(WINDOW + 20)))
    made = await frozen(database, stop_ratio=0.2)
    running = asyncio.create_task(run(database, made))

    async def window_is_full() -> bool:
        return (await replays.get(await database.connect(), made.id)).replayed == WINDOW

    await eventually(window_is_full, 30, what="as many messages being out as may be")
    for each in failing[: FEWEST // 2]:
        await one.attempt(each, Handler(ValueError("still no"), writes=False), NO_PAUSE, redelivered=True)
    async with asyncio.timeout(20):
        stopped = await running
    # Each failure that is known lets one more out, until they are too many.
    assert stopped.state is ReplayState.STOPPED
    assert WINDOW <= stopped.replayed < WINDOW + FEWEST // 2
    assert stopped.failed_again > 0.2 * FEWEST
    for each in failing[FEWEST // 2 : stopped.replayed]:
        await one.attempt(each, Handler(message_id=each.message_id), NO_PAUSE, redelivered=True)
    resumed = await run(database, made)
    assert (resumed.state, resumed.replayed) == (ReplayState.FINISHED, WINDOW + 20)


async def test_a_copy_that_comes_while_messages_are_replayed_has_one_effect(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    failing = await exhausted(one, *(f"m-{number}" for number in range(30)))
    made = await frozen(database)
    running = asyncio.create_task(run(database, made))
    ended: set[str] = set()
    while len(ended) < len(failing):
        for each in failing:
            outcome = await one.attempt(each, Handler(message_id=each.message_id), NO_PAUSE, redelivered=True)
            if isinstance(outcome, Processed):
                assert each.message_id not in ended
                ended.add(each.message_id)
            elif running.done() and isinstance(outcome, Ended):
                raise AssertionError(f"{each.message_id} was left behind")
        skipped = [item for item in await outcomes(database, made) if item[1] == ItemOutcome.SKIPPED.value]
        assert not skipped or running.done()
        if running.done() and skipped:
            break
    done = await running
    assert done.replayed == len(ended)
    for each in failing:
        assert (await standing(database, each)).effects == (1 if each.message_id in ended else 0)


async def test_a_job_goes_through_more_messages_than_it_reads_at_once(database: Database) -> None:
    await many_exhausted(database, 1_100)
    seen: list[Progress] = []
    done = await run(database, await frozen(database), progress=seen.append)
    assert (done.state, done.replayed) == (ReplayState.FINISHED, 1_100)
    assert [each.item.position for each in seen if each.item is not None] == list(range(1, 1_101))
