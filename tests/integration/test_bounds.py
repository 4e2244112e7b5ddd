"""A consumer that is full begins nothing new and goes on with what it has; nothing is lost, and nothing is charged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from inbox import Bound, count_open
from inbox.outcomes import Full, Processed, Waiting
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import HOT_AND_COUNTED, NO_PAUSE, Handler, Process, StartProcess, message, standing
from tests.support.process import StartFleet
from tests.support.service import Service
from tests.support.vhosts import Vhost


async def fail(one: Process, message_id: str) -> None:
    outcome = await one.attempt(message(message_id), Handler(ValueError("no"), message_id=message_id))
    assert isinstance(outcome, Waiting)


async def test_what_is_on_record_and_not_at_an_end_is_counted_for_each_consumer_up_to_its_bound(
    process: StartProcess,
) -> None:
    one = await process()
    for number in range(3):
        await fail(one, f"m-{number}")
    await fail(one, "m-processed")
    done = await one.attempt(message("m-processed"), Handler(message_id="m-processed"), NO_PAUSE, redelivered=True)
    assert done == Processed(2)
    roomy, tight, other = Bound("billing", 100), Bound("billing", 2), Bound("shipping", 100)
    for bound, number in ((roomy, 3), (tight, 2), (other, 0)):
        counting = asyncio.create_task(count_open(one.housekeeping, [bound], every_s=0.01))
        await eventually(lambda bound=bound, number=number: bound.open == number, what="the count")
        counting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await counting
    assert roomy.may_begin()
    assert not tight.may_begin()


@HOT_AND_COUNTED
async def test_a_full_consumer_begins_nothing_and_goes_on_with_what_it_has(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one = await process()
    await fail(one, "m-1")
    one.inbox._may_begin = lambda: False
    unread = Handler(message_id="m-2")
    assert await one.attempt(message("m-2"), unread, redelivered=redelivered) == Full()
    assert unread.calls == []
    assert (await standing(database, message("m-2"))).state is None
    assert await one.attempt(message("m-1"), Handler(message_id="m-1"), redelivered=redelivered) == Processed(2)


async def test_a_failing_dependency_fills_no_more_than_the_bound_and_everything_is_processed_after_the_fix(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    lanes, max_open = 4, 10
    table = {"lanes": lanes, "max_open": max_open, "max_attempts": 1000, "pacing": ["200ms"]}
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": table})
    await service.prepare()
    await database.execute("create table dependency (works boolean); insert into dependency values (false)")
    ids = [f"m-{number}" for number in range(50)]
    await service.publish(*ids, sql="select 1 / case when works then 1 else 0 end from dependency")
    process = await service.start()
    most = 0

    async def is_full() -> bool:
        nonlocal most
        most = max(most, await database.fetchval("select count(*) from inbox.message"))
        # Every message has been delivered, and those that were begun have failed again and again since.
        return bool(process.events("consumer.full")) and max(service.starts().values()) > 10

    await eventually(is_full, 60, what="a full consumer that goes on with what it has", every_s=0.05)
    assert max_open <= most <= max_open + lanes
    begun = set(service.starts())
    assert len(begun) <= max_open + lanes
    status, ready = await process.get("/readyz")
    assert status == 200 and "max_open = 10" in json.loads(ready)["notes"]["work"]
    assert 'inbox_full{consumer="work"} 1.0' in (await process.get("/metrics"))[1]
    # One is charged as it begins, before its handler says that it was called.
    charged = await database.fetchval("select count(*) from inbox.attempt where charged and outcome <> 'started'")
    assert charged <= service.starts().total()

    await database.execute("update dependency set works = true")
    await service.settled(60)
    await service.exact(ids)
    # What was not begun has been tried once: it waited uncounted.
    assert {service.starts()[name] for name in set(ids) - begun} == {1}
    await service.stopped(process)
    await service.at_rest()
