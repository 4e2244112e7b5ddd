"""Suspects run alone: a message that kills every process that takes it costs no other message anything.

All of them are in the hands of one process when it dies, as many as the prefetch allows, and a supervisor starts the
next one at once. What each message was charged stands in its attempts, which are kept when it is processed in the end.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from inbox.messages import Story, named, story
from inbox.states import State
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.process import StartFleet
from tests.support.service import Service
from tests.support.supervisor import supervised
from tests.support.vhosts import Vhost

_MAX_ATTEMPTS = 2
_PREFETCH, _LANES = 16, 8
_GOOD = [f"good-{number}" for number in range(50)]


async def _story(database: Database, message_id: str) -> Story | None:
    connection = await database.connect()
    known = await named(connection, message_id)
    if not known:
        return None
    assert len(known) == 1
    return await story(connection, known[0])


async def test_a_message_that_kills_its_process_each_time_ends_and_fifty_beside_it_are_processed_uncharged(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(
        tmp_path,
        database,
        vhost,
        fleet,
        consumers={
            "work": {"lanes": _LANES, "look_ahead": _PREFETCH - _LANES, "max_attempts": _MAX_ATTEMPTS, "max_aborts": 1}
        },
        tables={"members": {"heartbeat": "200ms", "expiry": "1s"}},
    )
    await service.prepare()
    # It kills when all lanes are at work, and is delivered in the middle of the others.
    await service.publish(*_GOOD[:5], sleep_s=0.3)
    await service.publish("deadly", sleep_s=0.15, kill_in=[-1])
    await service.publish(*_GOOD[5:], sleep_s=0.3)

    async with supervised(service) as supervisor:

        async def over() -> bool:
            found = await database.fetch("select message_id, state from inbox.message")
            assert [tuple(row) for row in found] == [("deadly", "exhausted")]
            return True

        await eventually(over, 90, what="the end of the deadly one, and of it alone", every_s=0.1)
        await service.settled(60)
    await service.exact(_GOOD, terminal={"deadly": "exhausted"})
    # One more for its first delivery, which left no trace, and one in company, which was free.
    assert supervisor.deaths == [-signal.SIGKILL] * (2 + _MAX_ATTEMPTS)
    died = [process.pid for process in supervisor.processes[:-1]]

    # Its story says which processes it took with it, and that it was alone with those that it was charged for.
    deadly = await _story(database, "deadly")
    assert deadly is not None and deadly.row is not None
    assert (deadly.row.state, deadly.row.reason) == (State.EXHAUSTED, "attempts")
    told = [(attempt.outcome, attempt.charged, attempt.alone, attempt.pid) for attempt in deadly.attempts]
    assert told == [
        ("crashed", False, False, died[1]),
        ("crashed", True, True, died[2]),
        ("crashed", True, True, died[3]),
    ]
    assert {attempt.error_class for attempt in deadly.attempts} == {"ProcessDied"}
    (record,) = deadly.exhaustions
    assert (record.number, record.reason) == (len(told), "attempts")

    # Of the good ones those that died beside it were tried again, alone, and nobody was charged.
    company = 0
    for message_id in _GOOD:
        good = await _story(database, message_id)
        if good is None:
            continue  # processed by its first delivery: a receipt and nothing else
        outcomes = Counter((attempt.outcome, attempt.charged) for attempt in good.attempts)
        assert outcomes == {("crashed", False): 1, ("processed", False): 1}, (message_id, outcomes)
        (crashed, processed) = good.attempts
        assert (crashed.alone, crashed.pid) == (False, died[1])
        assert processed.alone
        assert processed.pid not in died[:2]
        company += 1
    assert company >= 2, "nothing ran beside it when it killed a process on record"
    assert await database.fetchval("select count(*) from inbox.attempt where charged") == _MAX_ATTEMPTS
    await service.stopped(supervisor.running)
    await service.at_rest()
