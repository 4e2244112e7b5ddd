"""Running a replay job: one message per transaction, in the frozen order, until nothing is pending.

The session that runs a job holds the job's lock, and every item is a commit of its own that states what became of it.
So a runner may die anywhere: its lock goes with its session, and the next one goes on with what is pending. An item
that was committed without an answer is not pending any more.

With a bound on failures, a job does not run far ahead of what the fleet has made of it: no more than `WINDOW` messages
are out undecided. Who asks a run to stop is answered between two messages, and never in the middle of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from inbox import replays
from inbox.backoff import Backoff
from inbox.errors import ReplayBusy, ReplayMissing, ReplayOver
from inbox.points import armed, reach
from inbox.queries import query
from inbox.replays import ItemOutcome, Replay, ReplayItem, ReplayState
from inbox.safe_text import MAX_NAME_TEXT, error_class, error_text, safe

_LOCK = query("try_replay_lock")
_LET_GO = query("let_go_of_replay")
_RUN = query("run_replay")
_STATE = query("replay_state")
_NEXT = query("replay_next")
_GIVE_UP = query("give_up_item")
_JUDGE = query("judge_replay")
_END = query("end_replay")

WINDOW = 100
"""How many replayed messages may be undecided while failures are counted."""

FEWEST = 10
"""How many decided messages are assumed at least: the first failure alone stops nothing."""

_TIMEOUT_S = 60.0
_LET_GO_TIMEOUT_S = 5.0
_PAGE = 500
_TRIES = 6
_LOOK_EVERY_S = 0.5
_LOOK_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is.

    :param item: what has just been decided; None for a look at the fates of earlier ones.
    :param done: items of the job that are not pending any more.
    :param processed: messages of this run that have been processed since they were replayed.
    :param failed_again: those of which an attempt has failed since.
    """

    total: int
    done: int
    processed: int
    failed_again: int
    item: ReplayItem | None = None


class _Halted(Exception):
    """The job does not run any more, or not by us: somebody has cancelled it, or asked this run to stop."""


async def run(
    connection: asyncpg.Connection[Any],
    replay_id: UUID,
    *,
    runner: str,
    progress: Callable[[Progress], None] = lambda _: None,
    stop: asyncio.Event | None = None,
) -> Replay:
    """Run a job until it is finished, stopped by its bound on failures, or cancelled. Return it as it is then.

    When it is asked to stop, or its session is lost, the job stays as it is and can be run again. So can a stopped one,
    which then counts failures anew.

    :param connection: a session of this call alone while it runs.
    :param runner: who says so to those who come second.
    :param progress: called for each item, and when more is known of the fate of earlier ones.
    :param stop: once it is set, no other message is replayed; the job is returned as one that runs.
    :raises ReplayMissing: there is none of that id.
    :raises ReplayBusy: somebody else runs it.
    :raises ReplayOver: it was cancelled. One that is finished is returned.
    """
    before = await replays.get(connection, replay_id)
    if before.state is ReplayState.FINISHED:
        return before
    async with _held(connection, before):
        if await connection.fetchval(_RUN, replay_id, safe(runner, MAX_NAME_TEXT), timeout=_TIMEOUT_S) is None:
            state = await connection.fetchval(_STATE, replay_id, timeout=_TIMEOUT_S)
            if state is None:
                raise ReplayMissing(replay_id=replay_id)
            if state != ReplayState.FINISHED.value:
                raise ReplayOver(replay_id=replay_id, state=state)
        else:
            reach("replay.begun")
            with suppress(_Halted):
                await _Run(
                    connection, await replays.get(connection, replay_id), progress, stop or asyncio.Event()
                ).all()
    return await replays.get(connection, replay_id)


@asynccontextmanager
async def _held(connection: asyncpg.Connection[Any], replay: Replay) -> AsyncIterator[None]:
    if not await connection.fetchval(_LOCK, replay.id, timeout=_TIMEOUT_S):
        raise ReplayBusy(replay_id=replay.id, runner=replay.runner or "somebody")
    try:
        yield
    finally:
        # The lock of a lost session goes with it.
        if not connection.is_closed():
            try:
                await connection.fetchval(_LET_GO, replay.id, timeout=_LET_GO_TIMEOUT_S)
            except TimeoutError:
                connection.terminate()


class _Run:
    """One run of a job, on a session that holds its lock."""

    def __init__(
        self,
        connection: asyncpg.Connection[Any],
        replay: Replay,
        progress: Callable[[Progress], None],
        stop: asyncio.Event,
    ) -> None:
        self._connection = connection
        self._replay = replay
        self._progress = progress
        self._stop = stop
        self._done = replay.total - replay.pending
        self._first: int | None = None
        self._replayed = self._processed = self._failed = 0
        self._next_s = self._look_s = time.monotonic()

    async def all(self) -> None:
        """Replay what is pending, then end the job."""
        after = 0
        while page := await replays.items(
            self._connection, self._replay.id, outcomes=(ItemOutcome.PENDING,), after=after, limit=_PAGE
        ):
            for item in page:
                self._first = item.position if self._first is None else self._first
                await self._turn()
                if self._stops():
                    await self._end(ReplayState.STOPPED)
                    return
                await self._one(item)
            after = page[-1].position
        await self._look()
        await self._end(ReplayState.FINISHED)

    async def _turn(self) -> None:
        """Wait until the next item may go: by the rate, and by what is undecided. Looks at the job meanwhile."""
        if time.monotonic() >= self._look_s:
            await self._look()
        while self._replay.stop_ratio is not None and not self._stops() and self._undecided >= WINDOW:
            await self._sleep(_LOOK_EVERY_S)
            await self._still_runs()
            await self._look()
        while (wait_s := self._next_s - time.monotonic()) > 0 and not self._stops():
            await self._sleep(min(wait_s, _LOOK_EVERY_S))
            if wait_s > _LOOK_EVERY_S:
                await self._still_runs()
                await self._look()
        await self._sleep(0)
        if self._replay.rate is not None:
            # Time that was lost is not made up for: a rate is what others can bear.
            self._next_s = max(self._next_s, time.monotonic()) + 1 / self._replay.rate

    async def _sleep(self, seconds: float) -> None:
        """Wait for so long.

        :raises _Halted: this run was asked to stop, before or meanwhile.
        """
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        if self._stop.is_set():
            raise _Halted

    async def _one(self, item: ReplayItem) -> None:
        pauses = Backoff(first_s=0.1, longest_s=1.0)
        outcome, detail = "contended", None
        for each in range(_TRIES):
            if each:
                await self._sleep(pauses.next_s())
            try:
                outcome, detail = await self._sent(item)
            except asyncpg.PostgresError as error:
                if self._connection.is_closed() or isinstance(error, asyncpg.PostgresConnectionError):
                    raise
                outcome, detail = ItemOutcome.FAILED.value, f"{error_class(error)}: {error_text(error)}"
            if outcome != "contended":
                break
        match outcome:
            case "halted":
                raise _Halted
            case "contended":
                outcome, detail = ItemOutcome.SKIPPED.value, "a copy of it is being worked on"
                await self._give_up(item, outcome, detail)
            case "failed":
                await self._give_up(item, outcome, detail or "")
        self._done += 1
        self._replayed += outcome == ItemOutcome.REPLAYED.value
        reach("replay.item_committed")
        self._tell(
            ReplayItem(
                position=item.position,
                key=item.key,
                generation=item.generation,
                consumer=item.consumer,
                message_id=item.message_id,
                outcome=ItemOutcome(outcome),
                detail=detail,
                fate=None,
                at=None,
            )
        )

    async def _sent(self, item: ReplayItem) -> tuple[str, str | None]:
        task = asyncio.create_task(self._connection.fetchrow(_NEXT, self._replay.id, item.position, timeout=_TIMEOUT_S))
        try:
            if armed():
                await asyncio.sleep(0)  # the statement is written in the task's first steps
                reach("replay.item_sent")
            row = await task
        finally:
            task.cancel()
        assert row is not None  # the function returns one row
        return row["outcome"], row["detail"]

    async def _give_up(self, item: ReplayItem, outcome: str, detail: str) -> None:
        await self._connection.execute(
            _GIVE_UP, self._replay.id, item.position, outcome, safe(detail), timeout=_TIMEOUT_S
        )

    async def _look(self) -> None:
        """Learn what the fleet has made of the messages so far; seldom, where that takes long."""
        began_s = time.monotonic()
        row = await self._connection.fetchrow(_JUDGE, self._replay.id, self._first or 1, timeout=_TIMEOUT_S)
        assert row is not None  # it counts
        reach("replay.judged")
        now_s = time.monotonic()
        self._look_s = now_s + max(_LOOK_EVERY_S, (now_s - began_s) / _LOOK_SHARE)
        if row["processed"] or row["failed"]:
            self._processed += row["processed"]
            self._failed += row["failed"]
            self._tell(None)

    @property
    def _undecided(self) -> int:
        return self._replayed - self._processed - self._failed

    def _stops(self) -> bool:
        if self._replay.stop_ratio is None:
            return False
        return self._failed > self._replay.stop_ratio * max(FEWEST, self._processed + self._failed)

    async def _still_runs(self) -> None:
        state = await self._connection.fetchval(_STATE, self._replay.id, timeout=_TIMEOUT_S)
        if state != ReplayState.RUNNING.value:
            raise _Halted

    async def _end(self, state: ReplayState) -> None:
        reach("replay.all_done")
        # Matches nothing if it was cancelled meanwhile; then that is how it ended.
        await self._connection.fetchval(_END, self._replay.id, state.value, timeout=_TIMEOUT_S)
        reach("replay.ended")

    def _tell(self, item: ReplayItem | None) -> None:
        self._progress(
            Progress(
                total=self._replay.total,
                done=self._done,
                processed=self._processed,
                failed_again=self._failed,
                item=item,
            )
        )
