"""What a handler does once it has written its effect, and what may be on record of an attempt that was told so."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum

import asyncpg

from inbox import Reject, Retry, Tx
from inbox.states import AttemptOutcome
from tests.invariants.loop import Loop
from tests.invariants.terms import HURRIED_TIMEOUT_S

RETRY_AFTER_S = 7.0


class Verdict(Enum):
    """How a handler ends."""

    SUCCEED = "succeed"
    FAIL = "fail"
    REJECT = "reject"
    RETRY = "retry"  # asks for a pause of its own
    SWALLOW = "swallow"  # swallows an error of the database and returns
    STATEMENT_TIMEOUT = "statement timeout"
    DEADLOCK = "deadlock"  # and again in each re-run
    OUTAGE = "outage"  # the database serves nobody
    OVERRUN = "overrun"  # its time passes, and it ends when it is cancelled
    STUCK = "stuck"  # its time passes, and it does not end when it is cancelled


CHARGED = {
    Verdict.FAIL: AttemptOutcome.FAILED,
    Verdict.RETRY: AttemptOutcome.FAILED,
    Verdict.SWALLOW: AttemptOutcome.FAILED,
    Verdict.OVERRUN: AttemptOutcome.TIMED_OUT,
    Verdict.STUCK: AttemptOutcome.TIMED_OUT,
}
"""Verdicts that are the message's own fault, and what is charged for them. Nothing else is, but a death."""

_RAISE = "do $$ begin raise exception 'as the test wished' using errcode = '{}'; end $$"


async def perform(verdict: Verdict, tx: Tx, released: asyncio.Event) -> None:
    """End a handler as it was told.

    :param released: lets a stuck one go, long after everybody has given it up.
    """
    match verdict:
        case Verdict.SUCCEED:
            return
        case Verdict.FAIL:
            raise ValueError("as the test wished")
        case Verdict.REJECT:
            raise Reject("as the test wished")
        case Verdict.RETRY:
            raise Retry(after=RETRY_AFTER_S)
        case Verdict.SWALLOW:
            with contextlib.suppress(asyncpg.DivisionByZeroError):
                await tx.execute("select 1 / 0")
        case Verdict.STATEMENT_TIMEOUT:
            await tx.execute(_RAISE.format("57014"))
        case Verdict.DEADLOCK:
            await tx.execute(_RAISE.format("40P01"))
        case Verdict.OUTAGE:
            await tx.execute(_RAISE.format("53100"))
        case Verdict.OVERRUN:
            _let_time_pass()
            await asyncio.Event().wait()
        case Verdict.STUCK:
            _let_time_pass()
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()


def _let_time_pass() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.move(HURRIED_TIMEOUT_S)
