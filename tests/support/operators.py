"""What tests of operators' work have in common: messages that have ended, and jobs that replay them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

from inbox import Message, Policy, Reject, replay_job, replays
from inbox.messages import Filter, MessageRow, find
from inbox.replays import Replay
from tests.support.command import Command, Finished, inbox_fleet, inbox_fleet_asking, running
from tests.support.configs import write_config
from tests.support.databases import Database
from tests.support.inboxes import Handler, Process, ended, message

ONCE = Policy(max_attempts=1, max_aborts=5, pacing_s=(0.0,), handler_timeout_s=10.0)
CONSUMERS = {name: {"queue": name, "handler": f"nowhere:{name}"} for name in ("billing", "audit")}
WHY = {"by_whom": "ann@desk", "reason": "the tax table is repaired"}


async def exhausted(one: Process, *ids: str, error: BaseException | None = None, **differences: Any) -> list[Message]:
    """Let messages end exhausted, in this order."""
    failing = [message(message_id, **differences) for message_id in ids]
    for each in failing:
        ended(await one.attempt(each, Handler(error or ValueError("no"), writes=False), ONCE))
    return failing


async def rejected(one: Process, *ids: str) -> list[Message]:
    """Let messages end rejected, in this order."""
    return await exhausted(one, *ids, error=Reject("malformed"))


async def waiting(one: Process, *ids: str) -> list[Message]:
    """Let messages fail once and wait."""
    policy = Policy(max_attempts=3, max_aborts=5, pacing_s=(3600.0,), handler_timeout_s=10.0)
    failing = [message(message_id) for message_id in ids]
    for each in failing:
        await one.attempt(each, Handler(ValueError("no"), writes=False), policy)
    return failing


async def many_exhausted(database: Database, number: int) -> None:
    """Put messages on record as exhausted, without their attempts having been made."""
    await database.execute(
        """
        with made as (
            insert into inbox.message (key, consumer, source, message_id, type, state, reason, body, properties,
                                       exchange, routing_key, first_seen_at, changed_at, finished_at)
            select gen_random_uuid(), case n % 2 when 0 then 'billing' else 'audit' end, '/shop', 'm-' || n, 'order',
                   'exhausted', 'attempts', '', '', '', '', now() - interval '2 h', at, at
              from generate_series(1, $1::integer) n
             cross join lateral (select now() - make_interval(secs => $1::integer - n) as at) moments
            returning key)
        insert into inbox.attempt (claim_id, key, generation, number, member_id, alone, outcome, charged, started_at,
                                   finished_at, error_class, error_text)
        select gen_random_uuid(), key, 1, 1, gen_random_uuid(), false, 'failed', true, now(), now(), 'shop.TaxError',
               'no'
          from made
        """,
        number,
    )


async def frozen(database: Database, chosen: Filter | None = None, **options: Any) -> Replay:
    """Make a replay job."""
    made = await replays.freeze(await database.connect(), chosen or Filter(), service="billing", **{**WHY, **options})
    assert made is not None
    return made


async def row_of(database: Database, key: UUID) -> MessageRow:
    """Return a message's row as an operator sees it."""
    (row,) = await find(await database.connect(), Filter(keys=frozenset({key})))
    return row


async def replayed(database: Database, *keys: UUID) -> None:
    """Replay messages that have ended."""
    made = await frozen(database, Filter(keys=frozenset(keys)))
    done = await replay_job.run(await database.connect(), made.id, runner="tests")
    assert done.replayed == len(keys), done


class Desk:
    """An operator's place: a configuration without handlers and without a broker, and the command.

    Args:
        folder: Where the configuration is written.
    """

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.environ = {"DATABASE_URL": database.url}
        write_config(folder, consumers=CONSUMERS, tables={"service": {"name": "billing"}})

    async def run(self, *arguments: str, code: int = 0, within_s: float = 60.0) -> Finished:
        """Run `inbox-fleet` and assert its exit code, and that nothing it wrote could move a terminal."""
        done = await inbox_fleet(*arguments, folder=self.folder, environ=self.environ, within_s=within_s)
        return _sound(done, code)

    def running(self, *arguments: str, module: str = "consumers.cli") -> AbstractAsyncContextManager[Command]:
        """Run `inbox-fleet` while the context lasts, for what happens meanwhile."""
        return running(*arguments, folder=self.folder, environ=self.environ, module=module)

    async def asked(
        self, *arguments: str, meanwhile: Callable[[], Awaitable[object]], answer: str = "y", code: int = 0
    ) -> Finished:
        """Run `inbox-fleet` as `run` does, on a terminal whose user answers after something else has happened."""
        folder, environ = self.folder, self.environ
        done = await inbox_fleet_asking(*arguments, folder=folder, environ=environ, meanwhile=meanwhile, answer=answer)
        return _sound(done, code)

    async def lines(self, *arguments: str, code: int = 0, within_s: float = 60.0) -> list[dict[str, Any]]:
        """Run `inbox-fleet` and return the JSON objects that it wrote, one a line."""
        done = await self.run(*arguments, code=code, within_s=within_s)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert all(each["schema_version"] == 1 for each in found)
        return found


def _sound(done: Finished, code: int) -> Finished:
    assert done.code == code, f"exit code {done.code} instead of {code}:\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    for written in (done.stdout, done.stderr):
        assert written.replace("\n", "").isprintable(), f"raw: {written!r}"
    return done
