"""The handlers of the service under test. What each message does is said in its body, so a test chooses it.

Every call writes a line to a file that no transaction rolls back (`CALLS_FILE`), so a test knows what was tried, and
into the ledger by its tx, so a test knows what was committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from consumers import Consumer, Envelope, Reject, Retry, Tx
from tests.support.eventually import eventually
from tests.support.ledger import INSERT


class Behaviour(Struct, kw_only=True):
    """What a message's handler does, in the order of these fields.

    reached: Touch this file.
    wait_for: Go on when this file exists.
    needs: Raise `ServiceDown` while this file does not exist.
    sleep_s: Sleep on the event loop.
    block_s: Block the event loop.
    clings: Swallow every cancellation, for ever.
    kill_in: Send SIGKILL to the own process in these attempts.
    kills_without: Send SIGKILL to the own process while this file does not exist.
    exit_in: Call `os._exit` in these attempts.
    hoard_in: Take more and more memory in these attempts, up to 1 GB, until somebody ends the process.
    sql_sleep_s: Sleep in the database.
    effects: Entries in the ledger.
    sql: Execute this, with the message id as its argument where it has one.
    swallow: Run a statement that fails, and swallow its error.
    system_exit: Raise SystemExit.
    reject: Raise Reject.
    retry_in: Raise Retry in these attempts, `retry_after_s` long.
    fail_in: Raise an ordinary error in these attempts; -1 is every attempt.
    """

    reached: str | None = None
    wait_for: str | None = None
    needs: str | None = None
    sleep_s: float = 0.0
    block_s: float = 0.0
    clings: bool = False
    kill_in: list[int] = []
    kills_without: str | None = None
    exit_in: list[int] = []
    hoard_in: list[int] = []
    sql_sleep_s: float = 0.0
    effects: int = 1
    sql: str | None = None
    swallow: bool = False
    system_exit: bool = False
    reject: str | None = None
    retry_in: list[int] = []
    retry_after_s: float | None = None
    fail_in: list[int] = []
    error: str = "as the test wished"


class ServiceDown(ConnectionError):
    """What the client of a service raises while that is down."""


work = Consumer("work")
audit = Consumer("audit")


@work.on("test.work")
async def handle(envelope: Envelope, tx: Tx) -> None:
    """Do as the body says."""
    await _behave(envelope, tx)


@audit.on("test.work")
async def write_down(envelope: Envelope, tx: Tx) -> None:
    """Do as the body says, for another consumer."""
    await _behave(envelope, tx, writer="audit")


@work.on("test.plain")
def handle_plainly(envelope: Envelope, tx: Any) -> None:
    """Do the same in a thread, as far as a thread can."""
    behaviour = envelope.decode(Behaviour)
    _note(envelope)
    tx.execute(INSERT, envelope.id, envelope.attempt.number, f"thread {os.getpid()}")
    if behaviour.block_s:
        time.sleep(behaviour.block_s)
    if _now(envelope, behaviour.fail_in):
        raise RuntimeError(behaviour.error)


async def _behave(envelope: Envelope, tx: Tx, writer: str = "work") -> None:
    behaviour = envelope.decode(Behaviour)
    _note(envelope)
    if behaviour.reached is not None:
        _touch(behaviour.reached)
    if behaviour.wait_for is not None:
        await eventually(Path(behaviour.wait_for).exists, 60.0, what="the test's sign to go on")
    if behaviour.needs is not None and not _exists(behaviour.needs):
        raise ServiceDown("nobody answers")
    if behaviour.sleep_s:
        await asyncio.sleep(behaviour.sleep_s)
    if behaviour.block_s:
        _block(behaviour.block_s)
    while behaviour.clings:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
    deadly = behaviour.kills_without is not None and not _exists(behaviour.kills_without)
    if deadly or _now(envelope, behaviour.kill_in):
        os.kill(os.getpid(), signal.SIGKILL)
    if _now(envelope, behaviour.exit_in):
        os._exit(17)
    if _now(envelope, behaviour.hoard_in):
        await _hoard()
    if behaviour.sql_sleep_s:
        await tx.execute("select pg_sleep($1)", behaviour.sql_sleep_s)
    for _ in range(behaviour.effects):
        await tx.execute(INSERT, envelope.id, envelope.attempt.number, f"{writer} {os.getpid()}")
    if behaviour.sql is not None:
        await tx.fetch(behaviour.sql, *([envelope.id] if "$1" in behaviour.sql else []))
    if behaviour.swallow:
        try:
            await tx.execute("select 1 / 0")
        except Exception as error:
            print(f"swallowed {type(error).__name__}", file=sys.stderr)
    if behaviour.system_exit:
        raise SystemExit(3)
    if behaviour.reject is not None:
        raise Reject(behaviour.reject)
    if _now(envelope, behaviour.retry_in):
        raise Retry(after=behaviour.retry_after_s)
    if _now(envelope, behaviour.fail_in):
        raise RuntimeError(behaviour.error)


def _exists(path: str) -> bool:
    return Path(path).exists()


def _touch(path: str) -> None:
    Path(path).touch()


async def _hoard() -> None:
    # Some 200 MB a second, each page touched, so that whoever watches has the time to see it coming.
    held: list[bytes] = []
    while len(held) < 1024:
        held.append(b"x" * 2**20)
        await asyncio.sleep(0.005)
    await asyncio.sleep(3600)


def _block(seconds: float) -> None:
    time.sleep(seconds)


def _now(envelope: Envelope, attempts: list[int]) -> bool:
    return -1 in attempts or envelope.attempt.number in attempts


def _note(envelope: Envelope) -> None:
    line = {
        "id": envelope.id,
        "consumer": envelope.consumer,
        "attempt": envelope.attempt.number,
        "redelivered": envelope.redelivered,
        "pid": os.getpid(),
        "at": time.time(),
    }
    path = os.environ.get("CALLS_FILE")
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
