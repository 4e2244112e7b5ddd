"""Many copies of one message at once, and handlers that take long: one effect, and nobody waits with a connection."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.process import FleetProcess, StartFleet
from tests.support.service import Service
from tests.support.vhosts import Vhost

_POOL = "tests-work"


def _settled_as(processes: list[FleetProcess], outcome: str) -> int:
    return sum(event["outcome"] == outcome for process in processes for event in process.events("attempt.settled"))


async def test_eight_copies_on_two_processes_give_one_effect_and_the_losers_wait_in_the_broker(
    service: Service,
) -> None:
    processes = [await service.start(), await service.start()]
    go_on = service.file("go-on")
    await service.publish("copied", copies=8, wait_for=str(go_on))
    # The seven others have lost the key at least once each.
    await eventually(lambda: _settled_as(processes, "contended") >= 7, 20, what="every other copy being contended")

    # The winner alone is in a transaction, and no loser holds a connection that does anything.
    busy = [row for row in await service.database.sessions(_POOL) if row["state"] != "idle"]
    assert [row["state"] for row in busy] == ["idle in transaction"]

    # No copy was acknowledged or counted: all eight are still in the broker, and nothing is on record.
    # While a copy is on its way into a parking queue it is there twice, so the broker is asked for a quiet moment.
    async def all_copies_are_there() -> bool:
        queues = await service.vhost.queues()
        return sum(counts.total for counts in queues.values()) == 8

    await eventually(all_copies_are_there, 10, what="eight copies being in the broker")
    assert await service.database.fetchval("select count(*) from inbox.attempt") == 0
    assert service.starts()["copied"] == 1

    go_on.touch()
    await service.settled()
    await service.exact(["copied"])
    assert service.starts()["copied"] == 1
    assert _settled_as(processes, "processed") == 1
    assert _settled_as(processes, "duplicate") == 7
    await service.stopped(*processes)
    await service.at_rest()


async def test_copies_of_a_message_whose_handler_takes_long_come_once_per_contention_step(service: Service) -> None:
    process = await service.start()
    go_on = service.file("go-on")
    copies, long_s, step_s = 3, 3.0, 0.2
    began = time.monotonic()
    await service.publish("long", copies=copies, wait_for=str(go_on))
    await eventually(lambda: time.monotonic() - began > long_s, long_s + 5, what="the handler taking long")
    contended = _settled_as([process], "contended")
    took_s = time.monotonic() - began
    go_on.touch()
    await service.settled()
    await service.exact(["long"])
    others = copies - 1
    assert contended >= others * 3, "the copies did not even come back"
    assert contended <= others * (took_s / step_s + 1), f"{contended} tries in {took_s:.1f} s is spinning"
    await service.stopped(process)


async def test_copies_that_were_contended_run_when_the_first_one_fails(service: Service) -> None:
    processes = [await service.start(), await service.start()]
    go_on = service.file("go-on")
    await service.publish("copied", copies=4, wait_for=str(go_on), fail_in=[1, 2])
    await eventually(lambda: _settled_as(processes, "contended") >= 3, 20, what="every other copy being contended")
    go_on.touch()
    await service.settled()
    await service.exact(["copied"])
    # Three copies that came early did not burn the budget: each attempt waited for its due time.
    assert service.starts()["copied"] == 3
    await service.stopped(*processes)


async def test_a_blocked_event_loop_loses_its_connection_and_nothing_else(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, tables={"broker": {"heartbeat": "1s"}})
    await service.prepare()
    blocked = await service.start()
    reached = service.file("reached")
    await service.publish("blocking", reached=str(reached), block_s=6.0)
    await eventually(reached.exists, 10, what="the handler blocking")
    other = await service.start()
    await service.publish("neighbour")
    await service.settled()
    await service.exact(["blocking", "neighbour"])
    # The broker had given the connection up: it had to consume again, and its settlement came too late.
    await eventually(
        lambda: len(blocked.events("subscription.consuming")) > 1, 15, what="the blocked process consuming again"
    )
    await service.stopped(blocked, other)
    await service.at_rest()


async def test_two_consumers_of_one_exchange_have_an_effect_each(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    bound = {"bindings": [{"exchange": "fanned", "routing_key": "work", "exchange_type": "topic"}]}
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": bound, "audit": bound})
    await service.prepare()
    process = await service.start()
    await service.publish("both-1", "both-2", copies=2, exchange="fanned")
    await service.settled()
    rows = await database.fetch("select message_id, split_part(writer, ' ', 1) as writer from ledger order by 1, 2")
    assert [tuple(row) for row in rows] == [
        ("both-1", "audit"),
        ("both-1", "work"),
        ("both-2", "audit"),
        ("both-2", "work"),
    ]
    await service.stopped(process)
