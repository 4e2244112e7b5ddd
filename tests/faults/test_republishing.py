"""What messages owe to queues is published by a running fleet, once as a rule and never not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aio_pika
import pytest_asyncio

from servers import RabbitServer
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.operators import replayed
from tests.support.owing import DEAD, dead_letters, ended, nothing_on_record, on_record, owed
from tests.support.process import StartFleet
from tests.support.service import QUEUE, Service
from tests.support.vhosts import Vhost

MANY = 300
"""More than a page of what is owed."""


@pytest_asyncio.fixture
async def service(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """A service whose messages have one attempt."""
    made = Service(tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 1}})
    await made.prepare()
    return made


async def test_what_is_on_record_is_published_by_a_fleet_and_processed_where_it_was_replayed(service: Service) -> None:
    ids = [f"message-{number}" for number in range(20)]
    keys = await on_record(service.database, *ids)
    process = await service.start()
    await ended(service, len(ids))
    assert await dead_letters(service) == dict.fromkeys(ids, 1)
    await replayed(service.database, *keys)
    await nothing_on_record(service)
    await service.settled()
    await service.exact(ids)
    assert service.starts() == dict.fromkeys(ids, 1)
    assert await dead_letters(service) == {}
    assert "republish." not in process.output
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
    await service.publish("m-3", fail_in=[-1])
    await ended(service, 2, "rejected")
    await ended(service, 1, "exhausted")
    letters = {letter.message_id: letter for letter in await service.vhost.drain(DEAD)}
    assert letters.keys() == {"m-1", "m-2", "m-3"}
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
    assert letters["m-3"].headers["x-inbox-error-class"] == "RuntimeError"
    await service.stopped(process)


async def test_a_consumer_that_wants_no_dead_letters_owes_none(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 1, "dead_letters": False}})
    await service.prepare()
    await on_record(database, "m-1")
    process = await service.start()
    await ended(service, 1)
    assert DEAD not in await vhost.queues()
    assert "republish." not in process.output
    await service.stopped(process)


async def test_a_queue_that_is_gone_holds_back_what_is_owed_to_it_and_no_copy_and_is_told_of_once_for_all(
    service: Service,
) -> None:
    process = await service.start()
    await (await service.vhost.channel()).queue_delete(DEAD)
    ids = [f"message-{number}" for number in range(MANY)]
    await on_record(service.database, *ids)
    (replayable,) = await on_record(service.database, "replayed")
    await replayed(service.database, replayable)
    waiting = await eventually(lambda: process.events("republish.waiting"), 30, what="the missing queue being told of")
    assert (waiting[0]["queue"], waiting[0]["owed"]) == (DEAD, "dead_letter")
    assert DEAD in waiting[0]["problem"]
    await eventually(lambda: service.starts()["replayed"] == 1, 30, what="the copy to the other queue")
    # Each pause begins with one line, however many wait for its end.
    await eventually(lambda: len(process.events("republish.waiting")) >= 3, 30, what="further tries")
    assert process.events("republish.failed") == []
    assert await owed(service.database) == MANY
    await service.apply_topology()
    # The pause that runs then may be as long as the ones before it together.
    await ended(service, MANY, within_s=60)
    assert await dead_letters(service) == dict.fromkeys(ids, 1)
    await service.exact(["replayed"], terminal=dict.fromkeys(ids, "exhausted"))
    await service.stopped(process)


async def test_a_queue_that_is_full_takes_what_it_can_and_the_rest_waits_for_room(
    service: Service, shared_broker: RabbitServer
) -> None:
    few = '<<"{\\"max-length\\": 5, \\"overflow\\": \\"reject-publish\\"}">>'
    arguments = f'<<"{service.vhost.name}">>, <<"few">>, <<"[.]dead$">>, {few}, <<"0">>, <<"queues">>, <<"tests">>'
    await asyncio.to_thread(shared_broker.eval, f"rabbit_policy:parse_set({arguments}).")
    ids = [f"message-{number}" for number in range(30)]
    await on_record(service.database, *ids)
    process = await service.start()
    waiting = await eventually(lambda: process.events("republish.waiting"), 30, what="the full queue being told of")
    assert "full" in waiting[0]["problem"]
    taken: Counter[str] = Counter()

    async def all_taken() -> bool:
        taken.update(await dead_letters(service))
        return taken.keys() == set(ids)

    await eventually(all_taken, 60, what="each message's dead letter having come", every_s=0.2)
    assert not process.events("republish.failed")
    await ended(service, len(ids))
    await service.stopped(process)


async def test_a_message_of_which_no_fitting_copy_can_be_made_is_told_of_and_holds_up_no_other(
    service: Service,
) -> None:
    ids = ["bad", *[f"message-{number}" for number in range(3)]]
    keys = await on_record(service.database, *ids)
    # Its bytes are somebody else's: a copy would come back as another message.
    await service.database.execute(
        "update inbox.message m set properties = o.properties from inbox.message o "
        "where m.message_id = 'bad' and o.message_id = 'message-0'"
    )
    await replayed(service.database, *keys)
    process = await service.start()

    async def only_the_bad_one_is_left() -> bool:
        rows = await service.database.fetch("select message_id, copy_needed from inbox.message")
        return [tuple(row) for row in rows] == [("bad", True)]

    await eventually(only_the_bad_one_is_left, 30, what="the others being processed")
    unfit = await eventually(lambda: process.events("republish.unfit"), 10, what="the bad one being told of")
    assert {(event["message_id"], event["level"]) for event in unfit} == {("bad", "error")}
    assert service.starts() == dict.fromkeys(ids[1:], 1)
    await service.stopped(process)
