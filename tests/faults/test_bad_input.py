"""Messages that no handler can be given: each is on record once, rejected, with its bytes, and hurts nobody beside it.

They come from a real broker, written byte by byte as any sender's library might. Between them flow good messages, on
one and the same connection.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

import aio_pika
import pytest

from consumers.header_frame import header_frame_size
from tests.support import property_lists as wire
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.ledger import exactly_one_effect_each
from tests.support.outcomes import outcomes
from tests.support.process import FleetProcess, StartFleet
from tests.support.property_lists import listing, nested, table, text
from tests.support.raw_publish import publish_by_raw_key, publish_raw
from tests.support.service import SOURCE, Service
from tests.support.vhosts import Vhost


class Bad(NamedTuple):
    """A message and a part of the reason that it is to be rejected for. Its body, if not given, is the case's name."""

    properties: bytes
    reason: str
    body: bytes | None = None


def _listing(headers: list[wire.Header] | None = None, **properties: str | bytes | int) -> bytes:
    return listing(headers, **{"message_id": "bad", "type": "test.work", "app_id": SOURCE, **properties})


def _body(body: bytes, reason: str, number: int) -> Bad:
    return Bad(_listing(message_id=f"body-{number}"), reason, body)


_EVENT = [
    (b"ce-id", text("event")),
    (b"ce-source", text("/shop")),
    (b"ce-type", text("test.work")),
    (b"ce-specversion", text("1.0")),
]
_STRUCTURED = {"content_type": "application/cloudevents+json"}


def _near_the_limit() -> bytes:
    """A property list that fills its frame but for a few bytes, and so has little room for anything of ours."""
    fill = 130_900
    size = header_frame_size(_listing([(b"fill", text("x" * fill))], message_id="m" * 10))
    return _listing([(b"fill", text("x" * (fill + 131_050 - size)))], message_id="m" * 10)


IDENTITIES = {
    "no id": Bad(listing(type="test.work", app_id=SOURCE), "message_id is missing"),
    "an empty id": Bad(_listing(message_id=""), "message_id is empty"),
    "an id of one blank": Bad(_listing(message_id=" "), "message_id is blank"),
    "an event's blank id": Bad(listing([(b"ce-id", text("  ")), *_EVENT[1:]]), "CloudEvents id is blank"),
    "an id that is not UTF-8": Bad(_listing(message_id=b"\xff\xfe"), "message_id is not UTF-8"),
    "an id with NUL": Bad(_listing(message_id="a\0b"), "message_id holds NUL"),
    "an id with a lone surrogate": Bad(_listing(message_id=b"\xed\xa0\x80"), "message_id is not UTF-8"),
    "an event's id that is too long": Bad(listing([(b"ce-id", text("i" * 300)), *_EVENT[1:]]), "300 bytes long"),
    "an event's id with a lone surrogate": Bad(
        listing(**_STRUCTURED),
        "JSON is malformed",
        rb'{"specversion":"1.0","id":"\ud800","source":"/shop","type":"test.work","data":{}}',
    ),
    "an event without a source": Bad(listing([_EVENT[0], *_EVENT[2:]]), "source is missing"),
}
TYPES = {
    "a type nobody handles": Bad(_listing(message_id="t-1", type="test.unknown"), "no handler for type 'test.unknown'"),
    "no type": Bad(listing(message_id="t-2", app_id=SOURCE), "names no type"),
    "a type that is not UTF-8": Bad(_listing(message_id="t-3", type=b"caf\xe9"), "type is not UTF-8"),
    "a type with NUL": Bad(_listing(message_id="t-4", type="test\0work"), "type holds NUL"),
}
PROPERTIES = {
    "a time in microseconds": Bad(_listing(message_id="p-1", timestamp=1_700_000_000_000_000), "timestamp is out of"),
    "a time in nanoseconds": Bad(_listing(message_id="p-2", timestamp=1_700_000_000 * 10**9), "timestamp is out of"),
    "a time before all times": Bad(_listing(message_id="p-3", timestamp=-1), "timestamp is out of range"),
    "a header's time in microseconds": Bad(
        _listing([(b"at", wire.moment(1_700_000_000_000_000))], message_id="p-4"), "header 'at' is out of range"
    ),
    "a source that is not UTF-8": Bad(_listing(message_id="p-5", app_id=b"\xff"), "app_id is not UTF-8"),
    "a content type that is not UTF-8": Bad(_listing(message_id="p-6", content_type=b"\xc3"), "content_type is not"),
    "a header's name that is not UTF-8": Bad(_listing([(b"\xff", text("v"))], message_id="p-7"), "name is not UTF-8"),
    "a nested name that is not UTF-8": Bad(_listing([(b"t", table((b"\xff", b"V")))], message_id="p-8"), "header 't'"),
    "arrays in arrays": Bad(_listing([(b"deep", nested(700))], message_id="p-9"), "header 'deep' cannot be decoded"),
    "tables in tables": Bad(_listing([(b"deep", nested(700, b"F"))], message_id="p-10"), "header 'deep' cannot be"),
}
BODIES = {
    "no body": _body(b"", "not a Behaviour", 1),
    "half of JSON": _body(b'{"effects": 1', "not a Behaviour", 2),
    "no JSON": _body(b"\x00\xff\xfe\x80 raw \x00", "JSON is malformed", 3),
    "another shape": _body(b'{"effects": "many"}', "effects", 4),
    "half of a surrogate pair": _body(rb'{"error": "\ud800"}', "not a Behaviour", 5),
    "brackets in brackets": _body(b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not a Behaviour", 6),
    "a structured event that is no JSON": Bad(listing(**_STRUCTURED), "not a CloudEvent in JSON", b"{"),
    "headers that fill their frame, around no JSON": Bad(_near_the_limit(), "JSON is malformed", b"no JSON"),
}
BAD = {**IDENTITIES, **TYPES, **PROPERTIES, **BODIES}


@pytest.fixture
async def roomy(tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet) -> Service:
    """The service under test, which takes more deliveries at once than it has lanes."""
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"look_ahead": 200}})
    await service.prepare()
    return service


async def _publish_all(service: Service) -> list[str]:
    """Publish each bad message twice, a good one behind each, and return the ids of the good ones."""
    good = []
    for number, (name, bad) in enumerate(BAD.items()):
        for _ in range(2):
            await publish_raw(service.vhost, bad.properties, name.encode() if bad.body is None else bad.body)
        good.append(f"good-{number}")
        await service.publish(good[-1])
    return good


async def _each_rejected_once(service: Service) -> dict[str, bytes]:
    """Assert that each bad message is on record once, with its body, and return its property list as recorded."""
    rows = await service.database.fetch(
        "select m.body, m.properties, m.state, m.reason, a.outcome, a.charged "
        "from inbox.message m left join inbox.attempt a using (key)"
    )
    recorded = {row["body"]: row for row in rows}
    assert len(recorded) == len(rows), "a message is on record twice"
    lists = {}
    for name, bad in BAD.items():
        row = recorded.pop(name.encode() if bad.body is None else bad.body, None)
        assert row is not None, f"{name}: not on record with its body"
        assert (row["state"], row["outcome"], row["charged"]) == ("rejected", "rejected", False), name
        assert bad.reason in row["reason"], f"{name}: {row['reason']}"
        lists[name] = row["properties"]
    assert not recorded, f"{len(recorded)} more are on record"
    return lists


def _on_one_connection(process: FleetProcess) -> None:
    assert len(process.events("subscription.consuming")) == 1
    assert len(process.events("publisher.connected")) == 1
    for event in ("subscription.lost", "subscription.waiting", "lane.fault", "breaker.opened", "telemetry.failed"):
        assert process.events(event) == [], event


async def test_what_cannot_be_processed_is_recorded_once_and_hurts_nobody_beside_it(roomy: Service) -> None:
    process = await roomy.start()
    good = await _publish_all(roomy)
    await roomy.settled()
    await exactly_one_effect_each(roomy.database, good)
    assert await _each_rejected_once(roomy) == {name: bad.properties for name, bad in BAD.items()}
    _on_one_connection(process)
    assert outcomes(process)["rejected"] == len(BAD)
    await roomy.stopped(process)
    await roomy.at_rest()


async def test_what_cannot_be_processed_is_recorded_once_also_when_it_is_counted_first(roomy: Service) -> None:
    good = await _publish_all(roomy)
    # The broker has handed out what this one dies with, and will say of all of it that it is redelivered.
    await roomy.spawn(kill_at="delivery.received:40").exited(-9)
    process = await roomy.start()
    await roomy.settled()
    await exactly_one_effect_each(roomy.database, good)
    await _each_rejected_once(roomy)  # the broker has put its own count into the property lists
    _on_one_connection(process)
    rejected = [event for event in process.events("attempt.settled") if event["outcome"] == "rejected"]
    assert sum(event["redelivered"] for event in rejected) > len(BAD) / 2, "hardly any was redelivered"
    await roomy.stopped(process)
    await roomy.at_rest()


async def test_odd_but_good_messages_are_processed(service: Service) -> None:
    process = await service.start()
    channel = await service.vhost.channel()
    exchange = await channel.declare_exchange("shop", aio_pika.ExchangeType.FANOUT, durable=True)
    await (await channel.get_queue("work", ensure=False)).bind(exchange)
    body = b"{}"
    odd = {
        "nul-in-a-header": _listing([(b"note", text("a\0b"))], message_id="nul-in-a-header"),
        "bytes-in-a-header": _listing([(b"note", text(b"\xff\xfe"))], message_id="bytes-in-a-header"),
        "the-latest-time": _listing(message_id="the-latest-time", timestamp=253_402_300_799),
        "x-death-of-anybody": _listing(
            [(b"x-death", wire.array(table((b"queue", text("work")), (b"count", wire.long(50)))))],
            message_id="x-death-of-anybody",
        ),
        "m" * 10: _near_the_limit(),
    }
    for properties in odd.values():
        await publish_raw(service.vhost, properties, body)
    await publish_by_raw_key(
        service.vhost, _listing(message_id="odd-key"), body, exchange="shop", routing_key=b"caf\xe9\0\xff"
    )
    ids = [*odd, "odd-key"]
    await eventually(lambda: len(service.calls()) == len(ids), 20, what="every one being called for")
    await service.settled()
    await service.exact(ids)
    _on_one_connection(process)
    await service.stopped(process)


async def test_errors_and_headers_of_any_size_and_content_end_on_record(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(
        tmp_path, database, vhost, fleet, consumers={"work": {"max_attempts": 3, "pacing": ["200ms"], "lanes": 2}}
    )
    await service.prepare()
    process = await service.start()
    failing = {
        "nul": {"error": "a\0b"},
        "long": {"error": "x" * 300_000},
        "m" * 10: {"error": "y" * 300_000},
    }
    for message_id, behaviour in failing.items():
        properties = _near_the_limit() if message_id.startswith("m") else _listing(message_id=message_id)
        await publish_raw(service.vhost, properties, json.dumps({"fail_in": [-1], **behaviour}).encode())
    good = [f"good-{number}" for number in range(10)]
    await service.publish(*good)
    await service.settled(60)
    await service.exact(good, terminal=dict.fromkeys(failing, "exhausted"))
    rows = await database.fetch(
        "select m.message_id, m.properties, a.error_text from inbox.message m join inbox.attempt a using (key)"
    )
    assert len(rows) == 3 * len(failing)
    for row in rows:
        assert row["error_text"], row["message_id"]
        assert len(row["error_text"]) < 100_000
    [kept] = {bytes(row["properties"]) for row in rows if row["message_id"].startswith("m")}
    assert kept == _near_the_limit()
    _on_one_connection(process)
    await service.stopped(process)


async def test_types_without_a_handler_can_be_ignored(
    tmp_path: Path, database: Database, vhost: Vhost, fleet: StartFleet
) -> None:
    service = Service(tmp_path, database, vhost, fleet, consumers={"work": {"unknown_types": "ignore"}})
    await service.prepare()
    process = await service.start()
    await service.publish("unknown", kind="test.unknown")
    await asyncio.gather(*(service.publish(f"good-{number}") for number in range(3)))
    await service.settled()
    assert await database.fetchval("select count(*) from inbox.message") == 0
    assert await database.fetchval("select count(*) from inbox.receipt") == 4
    await exactly_one_effect_each(database, [f"good-{number}" for number in range(3)])
    await service.stopped(process)
