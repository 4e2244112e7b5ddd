"""The republisher's rounds without servers: who is served, who pauses, who is told of, and how often."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import pytest
from structlog.testing import capture_logs

from consumers import republisher
from consumers.errors import PublishError, PublishRefused, PublishReturned, PublishUnconfirmed
from consumers.publisher import Publisher
from consumers.republisher import Destination, Republisher
from inbox import Message
from inbox.obligations import Obligation, Owed, Owing
from inbox.states import State
from pools import Pool
from tests.support.inboxes import message
from tests.support.property_lists import listing

DEAD = "work.dead"
BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


class Rows:
    """What is owed, as the statements of `inbox.obligations` find, read and clear it."""

    def __init__(self) -> None:
        self.owed: dict[Obligation, Message] = {}
        self.found = self.read_times = 0
        self.broken: set[str] = set()

    def add(
        self, *ids: str, what: Owed = Owed.DEAD_LETTER, properties: bytes | None = None, body_bytes: int = 2
    ) -> None:
        for each in ids:
            raw = listing(message_id=each, app_id="/shop") if properties is None else properties
            row = message(each, properties=raw, consumer="billing")
            obligation = Obligation(
                what=what,
                key=row.key,
                generation=1,
                state=State.EXHAUSTED,
                changed_at=BEGAN + timedelta(seconds=len(self.owed)),
                message_id=each,
                type=row.type,
                body_bytes=body_bytes,
            )
            self.owed[obligation] = row

    @property
    def ids(self) -> list[str]:
        return [each.message_id for each in self.owed]

    async def find(
        self, connection: object, what: Owed, consumer: str, *, after: Obligation | None = None, limit: int
    ) -> list[Obligation]:
        self.found += 1
        rows = [each for each in self.owed if each.what is what and self.owed[each].consumer == consumer]
        later = [each for each in rows if after is None or each.changed_at > after.changed_at]
        return later[:limit]

    async def read(self, connection: object, obligation: Obligation) -> Owing | None:
        self.read_times += 1
        if obligation.message_id in self.broken:
            raise asyncpg.DataCorruptedError("invalid page in block 7")
        row = self.owed.get(obligation)
        if row is None:
            return None
        return Owing(obligation=obligation, message=row, reason=None, error_class=None, ended_at=None)

    async def clear(self, connection: object, obligation: Obligation) -> bool:
        return self.owed.pop(obligation, None) is not None


class Broker:
    """Confirms what it is given, but for what the test wants otherwise."""

    def __init__(self) -> None:
        self.connected = True
        self.missing: set[str] = set()
        self.full: set[str] = set()
        self.too_large: set[str] = set()
        self.deadly: set[str] = set()
        self.silent = False
        self.silent_queues: set[str] = set()
        self.tried: list[str] = []
        self.arrived: list[str] = []
        self.at_once = self.most_at_once = 0

    async def publish(self, *, routing_key: str, message_id: str, **_: Any) -> None:
        self.tried.append(message_id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        error = self._error(routing_key, {"exchange": "", "routing_key": routing_key, "message_id": message_id})
        if error is not None:
            raise error
        self.arrived.append(message_id)

    def _error(self, queue: str, named: dict[str, str]) -> PublishError | None:
        if self.silent:
            return PublishUnconfirmed(**named, problem="the broker blocks publishers", sent=False)
        if named["message_id"] in self.deadly or queue in self.silent_queues:
            return PublishUnconfirmed(**named, problem="the connection was lost", sent=True)
        if queue in self.missing:
            return PublishReturned(**named, problem="no queue is bound for it")
        if queue in self.full:
            return PublishRefused(**named, problem="nack", by_queue=True)
        if named["message_id"] in self.too_large:
            return PublishRefused(**named, problem="406 PRECONDITION_FAILED", by_queue=False)
        return None


class NoPool:
    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        yield


class Fleet:
    """One republisher, with a clock that the test moves."""

    def __init__(self, rows: Rows, broker: Broker) -> None:
        self.rows, self.broker, self.now = rows, broker, 1000.0
        self.told: Counter[tuple[str, str]] = Counter()
        names = {name: Destination(name=name, queue=name, dead_letters=f"{name}.dead") for name in ("work", "audit")}
        names["silent"] = Destination(name="silent", queue="silent", dead_letters=None)
        self.republisher = Republisher(
            cast(Pool, NoPool()),
            cast(Publisher, broker),
            {"billing": names["work"], "audit": names["audit"], "silent": names["silent"]},
            timeout_s=1.0,
            republished=lambda consumer, what, outcome: self.told.update([(what.value, outcome)]),
            clock=lambda: self.now,
        )

    async def round(self) -> bool:
        return await self.republisher.round()

    async def seconds(self, number: int) -> None:
        """What a process does in so many seconds: a round, and others at once while there is more."""
        for _ in range(number):
            for _ in range(100):
                if not await self.round():
                    break
            else:
                raise AssertionError("it never rests")
            self.now += 1.0


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    made = Rows()
    for name in ("find", "read", "clear"):
        monkeypatch.setattr(republisher, name, getattr(made, name))
    return made


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def fleet(rows: Rows, broker: Broker) -> Fleet:
    return Fleet(rows, broker)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def many(number: int) -> list[str]:
    return [f"m-{each:04}" for each in range(number)]


async def test_all_that_is_owed_is_published_once_some_of_it_at_a_time(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add(*many(450))
    await fleet.seconds(1)
    assert sorted(broker.arrived) == many(450)
    assert broker.most_at_once == 16
    assert (rows.owed, lines) == ({}, [])
    assert fleet.told == {("dead_letter", "confirmed"): 450}


async def test_of_large_messages_few_are_in_memory_at_a_time(fleet: Fleet, rows: Rows, broker: Broker) -> None:
    rows.add(*many(12), body_bytes=6 * 2**20)
    await fleet.seconds(1)
    assert broker.most_at_once == 2
    rows.add("huge-1", "huge-2", body_bytes=100 * 2**20)
    broker.most_at_once = 0
    await fleet.seconds(1)
    assert broker.most_at_once == 1
    assert rows.ids == []


async def test_what_has_changed_since_it_was_found_is_not_published(
    fleet: Fleet, rows: Rows, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.add("m-1")
    (obligation,) = rows.owed

    async def find(*_: Any, **__: Any) -> list[Obligation]:
        rows.owed.clear()
        return [obligation]

    monkeypatch.setattr(republisher, "find", find)
    await fleet.round()
    assert broker.tried == []


async def test_where_no_dead_letters_are_wanted_they_are_cleared_whatever_the_broker_does(
    fleet: Fleet, rows: Rows, broker: Broker
) -> None:
    rows.add("m-1")
    (obligation,) = rows.owed
    rows.owed = {obligation: message("m-1", consumer="silent")}
    broker.missing = {"work", "work.dead"}
    await fleet.round()
    assert (rows.owed, broker.tried) == ({}, [])


async def test_a_missing_queue_costs_one_line_and_one_try_for_each_pause_however_many_rows_wait_for_it(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add(*many(1000))
    broker.missing = {DEAD}
    await fleet.seconds(120)
    # 1, 2, 4, 8, 16 and then 30 s, each of them or half of it.
    assert 6 <= len(lines) <= 16
    assert {line["event"] for line in lines} == {"republish.waiting"}
    assert all(line["queue"] == DEAD and DEAD in line["problem"] for line in lines)
    assert max(line["next_try_s"] for line in lines) <= 30.0
    # The first time as many as are published at a time, and one each time after that.
    assert len(broker.tried) <= 16 + 16
    assert rows.read_times == len(broker.tried)

    broker.missing = set()
    await fleet.seconds(32)
    assert sorted(broker.arrived) == many(1000)
    assert broker.most_at_once == 16


@pytest.mark.parametrize("fault", ["missing", "full"])
async def test_a_queue_that_takes_nothing_holds_up_no_other(
    fault: str, rows: Rows, broker: Broker, fleet: Fleet
) -> None:
    rows.add(*many(40))
    rows.add("copy-1", "copy-2", what=Owed.COPY)
    setattr(broker, fault, {DEAD})
    await fleet.seconds(1)
    assert broker.arrived == ["copy-1", "copy-2"]


async def test_a_full_queue_is_told_of_like_a_missing_one(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add(*many(300))
    broker.full = {DEAD}
    await fleet.seconds(60)
    assert 5 <= len(lines) <= 12
    assert len(broker.tried) <= 16 + 12


async def test_a_broker_that_confirms_nothing_is_told_of_once_for_all_queues(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add(*many(100))
    rows.add("copy-1", what=Owed.COPY)
    broker.silent = True
    await fleet.seconds(60)
    assert 5 <= len(lines) <= 12
    assert len(broker.tried) <= 16 + 12
    broker.silent = False
    await fleet.seconds(32)
    assert sorted(broker.arrived) == ["copy-1", *many(100)]


async def test_a_queue_that_never_answers_is_tried_less_and_less_and_others_go_on(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add(*many(100))
    broker.silent_queues = {DEAD}
    for number in range(60):
        rows.add(f"copy-{number}", what=Owed.COPY)
        await fleet.seconds(1)
    await fleet.seconds(3)
    assert broker.arrived == [f"copy-{number}" for number in range(60)]
    assert len(lines) <= 12
    assert len(broker.tried) - 60 <= 16 + 16
    broker.silent_queues = set()
    await fleet.seconds(32)
    assert len(broker.arrived) >= 60 + 99
    # The one that was tried each time might have been the cause, so it has pauses of its own.
    await fleet.seconds(64)
    assert sorted(broker.arrived[60:]) == many(100)


async def test_nothing_is_asked_of_anybody_while_there_is_no_connection(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add(*many(3))
    broker.connected = False
    await fleet.seconds(60)
    assert (rows.found, rows.read_times, broker.tried, lines) == (0, 0, [], [])
    broker.connected = True
    await fleet.seconds(1)
    assert broker.arrived == many(3)


async def test_a_message_that_costs_the_connection_each_time_holds_up_no_other(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add("deadly", *many(50))
    broker.deadly = {"deadly"}
    await fleet.seconds(10)
    assert sorted(broker.arrived) == many(50)
    await fleet.seconds(290)
    assert 6 <= broker.tried.count("deadly") <= 12
    assert rows.ids == ["deadly"]
    assert {line["message_id"] for line in lines} == {"deadly"}


async def test_a_message_that_the_broker_refuses_pauses_by_itself_and_holds_up_no_other(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add("large", *many(40))
    broker.too_large = {"large"}
    await fleet.seconds(1)
    assert sorted(broker.arrived) == many(40)
    await fleet.seconds(299)
    assert 7 <= broker.tried.count("large") <= 12
    assert [line["event"] for line in lines] == ["republish.failed"] * broker.tried.count("large")
    broker.too_large = set()
    await fleet.seconds(300)
    assert rows.ids == []


async def test_a_row_of_which_nothing_can_be_made_is_an_error_by_name_with_growing_pauses(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add("bad", what=Owed.COPY, properties=listing(message_id="somebody-else", app_id="/shop"))
    rows.add(*many(20), what=Owed.COPY)
    await fleet.seconds(300)
    assert sorted(broker.arrived) == many(20)
    assert rows.ids == ["bad"]
    assert 7 <= len(lines) <= 12
    for line in lines:
        assert (line["event"], line["log_level"], line["message_id"]) == ("republish.unfit", "error", "bad")
    pauses = [line["next_try_s"] for line in lines]
    assert pauses[0] <= 1.0 < pauses[-1]
    assert fleet.told == {("copy", "confirmed"): 20, ("copy", "unfit"): len(lines)}


async def test_a_row_that_the_database_cannot_read_ends_one_round_and_not_the_next(
    fleet: Fleet, rows: Rows, broker: Broker, lines: list[Any]
) -> None:
    rows.add("bad", what=Owed.COPY)
    rows.add(*many(20))
    rows.broken = {"bad"}
    with pytest.raises(asyncpg.DataCorruptedError):
        await fleet.round()
    assert broker.arrived == []
    await fleet.round()
    assert sorted(broker.arrived) == many(20)
    (line,) = lines
    assert (line["event"], line["message_id"]) == ("republish.failed", "bad")


async def test_behind_pages_of_rows_that_all_pause_others_are_reached(fleet: Fleet, rows: Rows, broker: Broker) -> None:
    bad = [f"bad-{number}" for number in range(600)]
    rows.add(*bad, what=Owed.COPY, properties=listing(message_id="somebody-else", app_id="/shop"))
    rows.add("good", what=Owed.COPY)
    await fleet.seconds(1)
    assert broker.arrived == ["good"]


async def test_what_was_asked_for_anew_does_not_inherit_a_pause(fleet: Fleet, rows: Rows, broker: Broker) -> None:
    rows.add("large")
    broker.too_large = {"large"}
    await fleet.seconds(100)
    broker.too_large = set()
    rows.owed.clear()
    await fleet.round()
    rows.add("other", "large")
    await fleet.round()
    assert broker.arrived == ["other", "large"]
