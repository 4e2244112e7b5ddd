"""A consumer whose messages all fail, and that reports each that became exhausted. What a report does is in the body.

Every call writes a line to `CALLS_FILE`, which no transaction rolls back, and into the table `report` by its tx.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from msgspec import Struct

from consumers import Consumer, Envelope, ExhaustionRecord, Tx
from tests.support.databases import Database
from tests.support.eventually import eventually

DDL = """
create table report (
    entry bigint generated always as identity primary key,
    message_id text not null,
    exhaustion_id uuid not null,
    tries integer not null
)
"""
_INSERT = "insert into report (message_id, exhaustion_id, tries) values ($1, $2, $3)"


class Report(Struct, kw_only=True, frozen=True):
    """What the report of a message does, in the order of these fields.

    reached: Touch this file.
    wait_for: Go on when this file exists.
    kill_in: Send SIGKILL to the own process in these tries.
    fail_in: Raise an ordinary error in these tries; -1 is every try.
    """

    reached: str | None = None
    wait_for: str | None = None
    kill_in: list[int] = []
    fail_in: list[int] = []


class Body(Struct, kw_only=True):
    """The body of a message to this consumer."""

    report: Report = Report()


reported = Consumer("reported")


@reported.on("test.work")
async def fail(envelope: Envelope, tx: Tx) -> None:
    """Fail, as every message here does."""
    raise RuntimeError("as the test wished")


@reported.on_exhausted
async def report(record: ExhaustionRecord, tx: Tx) -> None:
    """Do as the body says."""
    does = record.envelope.decode(Body).report
    _note(record)
    await tx.execute(_INSERT, record.envelope.id, record.id, record.tries)
    if does.reached is not None:
        _touch(does.reached)
    if does.wait_for is not None:
        await eventually(Path(does.wait_for).exists, 60.0, what="the test's sign to go on")
    if record.tries in does.kill_in:
        os.kill(os.getpid(), signal.SIGKILL)
    if -1 in does.fail_in or record.tries in does.fail_in:
        raise RuntimeError("as the test wished")


def _note(record: ExhaustionRecord) -> None:
    with Path(os.environ["CALLS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": record.envelope.id, "tries": record.tries, "pid": os.getpid()}) + "\n")


def _touch(path: str) -> None:
    Path(path).touch()


async def reported_once_each(database: Database, ids: set[str]) -> None:
    """Assert that each exhausted message has one committed report, whose record is acknowledged, and no other has."""
    reports = await database.fetch("select message_id, count(*) as reports from report group by message_id")
    assert {row["message_id"]: row["reports"] for row in reports} == dict.fromkeys(ids, 1)
    records = await database.fetch("select message_id, acknowledged_by from inbox.exhaustion")
    assert sorted(row["message_id"] for row in records) == sorted(ids)
    assert {row["acknowledged_by"] for row in records} == {"on_exhausted"}
