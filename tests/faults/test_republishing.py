"""What messages owe to queues is published by a running fleet, once as a rule and never not at all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import aio_pika
import pytest
import pytest_asyncio

from inbox.points import REPUBLISH_POINTS
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.operators import replayed
from tests.support.process import StartFleet
from tests.support.service import QUEUE, Service
from tests.support.vhosts import Vhost

DEAD = f"{QUEUE}.dead"
UNTIL_FIXED = "select 1 / count(*)::integer from fixed"


@pytest_asyncio.fixture
async def service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """A service whose messages have one attempt, and fail for want of a row that an operator adds."""
    made = Service(tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 1}})
    await made.prepare()
    await database.execute("create table fixed (id integer)")
    return made


async def _owed(service: Service) -> int:
    number: int = await service.database.fetchval(
        "select count(*) from inbox.message where copy_needed or dead_letter_needed"
    )
    return number


async def _ended(service: Service, number: int, state: str = "exhausted") -> list[object]:
    async def all_ended() -> list[object]:
        rows = await service.database.fetch("select key from inbox.message where state = $1", state)
        assert len(rows) == number and not await _owed(service)
        return [row["key"] for row in rows]

    return await eventually(all_ended, 30, what=f"{number} messages being {state} and owing nothing")


async def _dead_letters(service: Service) -> list[aio_pika.abc.AbstractIncomingMessage]:
    queue = await (await service.vhost.channel()).get_queue(DEAD, ensure=False)
    letters = []
    while (letter := await queue.get(no_ack=True, fail=False)) is not None:
        letters.append(letter)
    return letters


async def test_a_replayed_message_is_published_by_the_republisher_and_processed_by_a_running_fleet(
    service: Service,
) -> None:
    process = await service.start()
    ids = [f"message-{number}" for number in range(20)]
    await service.publish(*ids, sql=UNTIL_FIXED)
    keys = await _ended(service, len(ids))
    await service.database.execute("insert into fixed values (1)")
    await replayed(service.database, *keys)  # type: ignore[arg-type]
    await eventually(lambda: _none_on_record(service), 30, what="all of them being processed")
    await service.settled()
    await service.exact(ids)
    assert service.starts() == dict.fromkeys(ids, 2)
    assert not process.events("republish.failed") + process.events("republish.unfit")
    await service.stopped(process)
    await service.at_rest()


async def test_what_has_ended_has_one_dead_letter_with_its_bytes_and_the_name_of_its_row(service: Service) -> None:
    process = await service.start()
    body = b"\x00\xff not JSON"
    message = aio_pika.Message(
        body,
        message_id="m-1",
        type="test.work",
        app_id="shop",
        headers={"CC": ["elsewhere"], "x-own": 7, "x-inbox-state": "forged"},
        expiration=60,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    channel = await service.vhost.channel()
    await channel.default_exchange.publish(message, routing_key=QUEUE, mandatory=True)
    await service.publish("m-2", reject="not ours")
    await eventually(lambda: _all_ended(service, 2), 30, what="both having ended and owing nothing")
    letters = {letter.message_id: letter for letter in await _dead_letters(service)}
    assert letters.keys() == {"m-1", "m-2"}
    rows = {row["message_id"]: row for row in await service.database.fetch("select * from inbox.message")}
    for message_id, letter in letters.items():
        row = rows[str(message_id)]
        assert letter.body == row["body"]
        assert letter.headers["x-inbox-key"] == str(row["key"])
        assert letter.headers["x-inbox-consumer"] == "work"
        assert letter.headers["x-inbox-generation"] == "1"
        assert letter.headers["x-inbox-state"] == row["state"]
        assert letter.headers["x-inbox-reason"] == row["reason"]
        assert letter.headers["x-inbox-ended-at"] == row["finished_at"].isoformat()
    first = letters["m-1"]
    assert first.body == body
    assert (first.headers["x-own"], first.app_id, first.expiration) == (7, "shop", None)
    assert "CC" not in first.headers
    assert rows["m-2"]["state"] == "rejected"
    await service.stopped(process)


async def test_a_consumer_that_wants_no_dead_letters_owes_none(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 1, "dead_letters": False}})
    await service.prepare()
    process = await service.start()
    await service.publish("m-1", fail_in=[-1])
    await _ended(service, 1)
    assert DEAD not in await vhost.queues()
    assert not process.events("republish.failed")
    await service.stopped(process)


async def test_a_queue_that_is_gone_holds_its_copies_back_until_it_is_there_again(service: Service) -> None:
    process = await service.start()
    await (await service.vhost.channel()).queue_delete(DEAD)
    await service.publish("m-1", "m-2", sql=UNTIL_FIXED)
    await eventually(lambda: process.events("republish.failed"), 30, what="the missing queue being told of")
    assert await _owed(service) > 0
    assert all(DEAD in event["problem"] for event in process.events("republish.failed"))
    await service.apply_topology()
    await _ended(service, 2)
    assert sorted(str(letter.message_id) for letter in await _dead_letters(service)) == ["m-1", "m-2"]
    await service.stopped(process)


@pytest.mark.parametrize("point", REPUBLISH_POINTS)
async def test_a_kill_at_a_named_point_of_republishing_loses_no_copy_and_doubles_no_effect(
    point: str, service: Service, rounds: Callable[[int, int], int]
) -> None:
    ids = [f"message-{number}" for number in range(6)]
    first = await service.start()
    await service.publish(*ids, sql=UNTIL_FIXED)
    keys = await _ended(service, len(ids))
    await service.stopped(first)
    await service.database.execute("insert into fixed values (1)")
    await replayed(service.database, *keys)  # type: ignore[arg-type]
    for _ in range(rounds(1, 3)):
        await service.spawn(kill_at=point).exited(-signal.SIGKILL, within_s=60)
    last = await service.start()
    await eventually(lambda: _none_on_record(service), 60, what="all of them being processed")
    await service.settled()
    await service.exact(ids)
    await service.stopped(last)
    await service.at_rest()


@pytest.mark.parametrize("point", REPUBLISH_POINTS)
async def test_a_kill_at_a_named_point_of_republishing_loses_no_dead_letter(point: str, service: Service) -> None:
    ids = [f"message-{number}" for number in range(6)]
    await service.publish(*ids, reject="not ours")
    await service.spawn(kill_at=point).exited(-signal.SIGKILL, within_s=60)
    last = await service.start()
    await _ended(service, len(ids), "rejected")
    letters = [str(letter.message_id) for letter in await _dead_letters(service)]
    assert set(letters) == set(ids)
    # As many as are published at a time may be sent again.
    assert len(letters) <= 2 * len(ids)
    await service.stopped(last)


async def test_a_message_of_which_no_fitting_copy_can_be_made_is_told_of_and_holds_up_no_other(
    service: Service,
) -> None:
    process = await service.start()
    ids = ["bad", *[f"message-{number}" for number in range(3)]]
    await service.publish(*ids, sql=UNTIL_FIXED)
    keys = await _ended(service, len(ids))
    await service.database.execute("insert into fixed values (1)")
    # Its bytes are somebody else's: a copy would come back as another message.
    await service.database.execute(
        "update inbox.message m set properties = o.properties from inbox.message o "
        "where m.message_id = 'bad' and o.message_id = 'message-0'"
    )
    await replayed(service.database, *keys)  # type: ignore[arg-type]

    async def only_the_bad_one_is_left() -> bool:
        rows = await service.database.fetch("select message_id, copy_needed from inbox.message")
        return [tuple(row) for row in rows] == [("bad", True)]

    await eventually(only_the_bad_one_is_left, 30, what="the others being processed")
    unfit = await eventually(lambda: process.events("republish.unfit"), 10, what="the bad one being told of")
    assert {event["message_id"] for event in unfit} == {"bad"}
    assert service.starts() == {"bad": 1, **dict.fromkeys(ids[1:], 2)}
    await service.stopped(process)


async def _none_on_record(service: Service) -> bool:
    return not await service.database.fetchval("select count(*) from inbox.message")


async def _all_ended(service: Service, number: int) -> bool:
    ended = await service.database.fetchval("select count(*) from inbox.message where finished_at is not null")
    return bool(ended == number) and not await _owed(service)
