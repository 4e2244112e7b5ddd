"""Faults provoked on a real database: what is charged, what waits, what pauses, and what a consumer may choose.

Deadlocks, locks and read-only servers have their tests beside those of failures, limits and outages. A transaction of
the product is READ COMMITTED, where the server itself finds no serialization failures; a handler's functions may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import asyncpg
import pytest

from inbox import Attempt, Overrides, Policy, Reject, Retry, Tx, blocked
from inbox.faults import ACTIONS
from inbox.outcomes import Outcome, Processed, Unavailable, Unknown, Waiting
from inbox.states import State
from pools import SessionSettings
from tests.support.databases import Database
from tests.support.eventually import eventually
from tests.support.inboxes import (
    HOT_AND_COUNTED,
    PROCESSED,
    Handler,
    Standing,
    StartProcess,
    Step,
    ended,
    message,
    standing,
)

PACED = Policy(max_attempts=3, max_aborts=5, pacing_s=(5.0, 60.0), handler_timeout_s=10.0)
ABORTED = Standing(0, 0, "waiting", (("aborted", False),))
CHARGED = Standing(0, 0, "waiting", (("failed", True),))
NO_PRIVILEGE = "InsufficientPrivilegeError (42501)"


class Outage(ConnectionError):
    """What a handler's client raises when its service is down."""


class Refused(Outage):
    """A kind of it."""


def choosing(faults: Mapping[str | type[BaseException], str], policy: Policy = PACED) -> Policy:
    """Return the policy of a consumer that judges these errors otherwise."""
    by_sqlstate = {key: ACTIONS[action] for key, action in faults.items() if isinstance(key, str)}
    by_type = {key: ACTIONS[action] for key, action in faults.items() if not isinstance(key, str)}
    return replace(policy, faults=Overrides(MappingProxyType(by_sqlstate), MappingProxyType(by_type)))


def meeting(sqlstate: str) -> Handler:
    """Return a handler whose statement meets an error."""

    async def meet(_: Attempt, tx: Tx) -> None:
        await tx.execute(f"do $$ begin raise exception using errcode = '{sqlstate}'; end $$")

    return Handler(meet)


def waits(outcome: Outcome, *, charged: bool, delay_s: float = 5.0, pauses: bool = False) -> str:
    """Assert that a message waits like this, and return what for."""
    assert isinstance(outcome, Waiting), outcome
    assert (outcome.charged, outcome.delay_s, outcome.pauses) == (charged, delay_s, pauses)
    return outcome.error_class.rpartition(".")[2]


# Statements that are cancelled.


async def sleep_with_a_limit(_: Attempt, tx: Tx) -> None:
    await tx.execute("set local statement_timeout = '50ms'")
    await tx.execute("select pg_sleep(60)")


@HOT_AND_COUNTED
async def test_a_limit_that_a_handler_set_for_its_statements_makes_it_wait_uncharged(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, handler = await process(), Handler(sleep_with_a_limit)
    outcome = await one.attempt(message(), handler, PACED, redelivered=redelivered)
    assert waits(outcome, charged=False) == "QueryCanceledError"
    assert len(handler.calls) == 1, "a statement that gave way is not sent again at once"
    assert await standing(database, message()) == ABORTED


async def test_the_servers_limit_for_a_statement_makes_it_wait_uncharged(
    process: StartProcess, database: Database
) -> None:
    one = await process(session=SessionSettings(statement_timeout_s=0.1, idle_in_transaction_timeout_s=20))

    async def sleep(_: Attempt, tx: Tx) -> None:
        await tx.execute("select pg_sleep(60)")

    assert waits(await one.attempt(message(), Handler(sleep), PACED), charged=False) == "QueryCanceledError"
    assert await standing(database, message()) == ABORTED


async def test_a_statement_that_always_misses_its_limit_ends_by_the_bound_of_aborts(
    process: StartProcess, database: Database
) -> None:
    one, policy = await process(), Policy(max_attempts=1, max_aborts=3, pacing_s=(0.0,), handler_timeout_s=10.0)
    outcomes = [await one.attempt(message(), Handler(sleep_with_a_limit), policy)]
    while isinstance(outcomes[-1], Waiting):
        outcomes.append(await one.attempt(message(), Handler(sleep_with_a_limit), policy, redelivered=True))
    assert ended(outcomes[-1]) == (State.EXHAUSTED, 3, "aborts")


@HOT_AND_COUNTED
async def test_an_operator_who_cancels_a_statement_charges_nobody_and_gets_rid_of_it(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, pids = await process(), list[int]()

    async def sleep(_: Attempt, tx: Tx) -> None:
        pids.append(await tx.fetchval("select pg_backend_pid()"))
        await tx.execute("select pg_sleep(60)")

    async def sleeps() -> bool:
        return bool(
            pids
            and await database.fetchval("select wait_event = 'PgSleep' from pg_stat_activity where pid = $1", pids[0])
        )

    handler = Handler(sleep)
    attempt = asyncio.create_task(one.attempt(message(), handler, PACED, redelivered=redelivered))
    await eventually(sleeps, what="a statement that takes long")
    assert await database.fetchval("select pg_cancel_backend($1)", pids[0])
    assert waits(await attempt, charged=False) == "QueryCanceledError"
    assert len(handler.calls) == 1
    assert await standing(database, message()) == ABORTED


@HOT_AND_COUNTED
async def test_a_deferred_trigger_that_misses_its_limit_at_the_stamp_charges_nobody(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    await _defer(database, "perform pg_sleep(60)")
    one = await process()

    async def work(_: Attempt, tx: Tx) -> None:
        await tx.execute("set local statement_timeout = '100ms'")
        await tx.execute("insert into deferred values (1)")

    outcome = await one.attempt(message(), Handler(work), PACED, redelivered=redelivered)
    assert waits(outcome, charged=False) == "QueryCanceledError"
    assert await standing(database, message()) == ABORTED


async def _defer(database: Database, what: str) -> None:
    await database.execute(
        "create table deferred (id integer);"
        f"create function later() returns trigger language plpgsql as $$ begin {what}; return null; end $$;"
        "create constraint trigger later after insert on deferred deferrable initially deferred "
        "for each row execute function later()"
    )


# Connections.


@HOT_AND_COUNTED
async def test_a_server_out_of_connections_pauses_before_any_handler_is_called(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, handler = await process(), Handler()
    await one.end_sessions()
    await database.execute(f"alter database {database.name} connection limit 1")
    outcome = await one.attempt(message(), handler, redelivered=redelivered)
    assert outcome == Unavailable("TooManyConnectionsError (53300)", started=False)
    assert await blocked(one.pool) is not None
    assert handler.calls == []
    await database.execute(f"alter database {database.name} connection limit -1")

    async def served() -> bool:
        return isinstance(await one.attempt(message(), handler, redelivered=redelivered), Processed)

    await eventually(served, what="a pool that is served again")
    assert await standing(database, message()) == PROCESSED


async def test_a_nested_connection_that_did_not_become_free_in_time_charges_nobody(
    process: StartProcess, database: Database
) -> None:
    one = await process(lanes=1, nested=1, headroom=0, acquire_timeout_s=0.1)

    async def ask_for_another(_: Attempt, tx: Tx) -> None:
        async with one.pool.acquire():
            raise AssertionError("it was free")

    async with one.pool.acquire():
        outcome = await one.attempt(message(), Handler(ask_for_another), PACED)
    assert waits(outcome, charged=False) == "PoolTimeout"
    assert await standing(database, message()) == ABORTED


# What only the stamp meets.


@HOT_AND_COUNTED
async def test_a_privilege_that_the_stamp_has_lost_pauses_the_consumer_until_it_is_there_again(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, revoked = await process(), Handler(_revoke(database))
    outcome = await one.attempt(message(), revoked, PACED, redelivered=redelivered)
    assert outcome == Unavailable(NO_PRIVILEGE, started=True)
    assert await blocked(one.pool) == NO_PRIVILEGE
    assert await standing(database, message()) == (ABORTED if redelivered else Standing(0, 0))
    await database.execute("grant insert on inbox.receipt to current_user")
    assert await blocked(one.pool) is None
    assert await one.attempt(message(), Handler(), PACED, redelivered=True) == Processed(2 if redelivered else 1)
    assert await standing(database, message()) == PROCESSED


async def test_what_the_stamp_has_lost_is_not_for_a_consumer_to_judge(
    process: StartProcess, database: Database
) -> None:
    one, policy = await process(), choosing({"42501": "charge", "42": "charge", Exception: "charge"})
    outcome = await one.attempt(message(), Handler(_revoke(database)), policy)
    assert outcome == Unavailable(NO_PRIVILEGE, started=True)
    assert await standing(database, message()) == Standing(0, 0)


@HOT_AND_COUNTED
async def test_a_procedure_that_the_stamp_misses_pauses_the_consumer(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, name = await process(), "stamp_counted(uuid, uuid)" if redelivered else "stamp(uuid)"

    async def lose_it(_: Attempt, tx: Tx) -> None:
        await database.execute(f"alter procedure inbox.{name} rename to gone")

    outcome = await one.attempt(message(), Handler(lose_it), PACED, redelivered=redelivered)
    assert outcome == Unavailable("UndefinedFunctionError (42883)", started=True)
    assert await standing(database, message()) == (ABORTED if redelivered else Standing(0, 0))


@HOT_AND_COUNTED
async def test_a_privilege_that_a_handlers_deferred_trigger_misses_is_its_own(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    await _defer(database, "insert into forbidden values (1)")
    await database.execute("create table forbidden (id integer); revoke insert on forbidden from current_user")
    one = await process()

    async def work(_: Attempt, tx: Tx) -> None:
        await tx.execute("insert into deferred values (1)")

    outcome = await one.attempt(message(), Handler(work), PACED, redelivered=redelivered)
    assert waits(outcome, charged=True) == "InsufficientPrivilegeError"
    assert await standing(database, message()) == CHARGED


def _revoke(database: Database) -> Step:
    async def revoke(_: Attempt, tx: Tx) -> None:
        await database.execute("revoke insert on inbox.receipt from current_user")

    return revoke


async def test_a_failure_that_cannot_be_recorded_pauses_the_consumer_and_charges_nobody(
    process: StartProcess, database: Database
) -> None:
    one = await process()
    await database.execute("revoke insert on inbox.message from current_user")
    outcome = await one.attempt(message(), Handler(ValueError("no")), PACED)
    assert outcome == Unavailable(NO_PRIVILEGE, started=True)
    assert await standing(database, message()) == Standing(0, 0)


# What a consumer chooses.


@pytest.mark.parametrize("sqlstate", ["40P01", "40001", "55P03", "57014", "53100", "57P03", "25006"])
@pytest.mark.parametrize("chosen", ["its own code", "its class"])
async def test_a_consumer_may_charge_for_what_is_nobodys_fault(
    process: StartProcess, database: Database, sqlstate: str, chosen: str
) -> None:
    one, handler = await process(), meeting(sqlstate)
    policy = choosing({sqlstate if chosen == "its own code" else sqlstate[:2]: "charge"})
    waits(await one.attempt(message(), handler, policy), charged=True)
    assert len(handler.calls) == 1
    assert await standing(database, message()) == CHARGED


async def test_a_consumer_may_forgive_what_its_own_functions_raise(process: StartProcess, database: Database) -> None:
    one = await process()
    assert (
        waits(await one.attempt(message(), meeting("P0001"), choosing({"P0": "abort"})), charged=False) == "RaiseError"
    )
    assert await standing(database, message()) == ABORTED


async def test_an_error_that_is_to_run_again_does_so_within_its_bound_and_then_waits_uncharged(
    process: StartProcess, database: Database
) -> None:
    one, handler = await process(), Handler(Refused("no route"))
    outcome = await one.attempt(message(), handler, choosing({Outage: "rerun"}))
    assert waits(outcome, charged=False) == "Refused"
    assert len(handler.calls) == 1 + PACED.max_reruns
    assert await standing(database, message()) == ABORTED


@HOT_AND_COUNTED
async def test_an_outage_that_a_handler_reports_is_recorded_uncharged_and_pauses_the_consumer(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    one, policy = await process(), choosing({Outage: "pause"})

    async def report(_: Attempt, tx: Tx) -> None:
        try:
            raise Refused("no route")
        except Refused as error:
            raise RuntimeError("the order was not sent") from error

    outcome = await one.attempt(message(), Handler(report), policy, redelivered=redelivered)
    assert waits(outcome, charged=False, pauses=True) == "RuntimeError"
    assert await standing(database, message()) == ABORTED


async def test_an_outage_that_never_ends_ends_its_message_by_the_bound_of_aborts(process: StartProcess) -> None:
    one = await process()
    policy = choosing({Outage: "pause"}, Policy(max_aborts=2, pacing_s=(0.0,), handler_timeout_s=10.0))
    waits(await one.attempt(message(), Handler(Outage()), policy), charged=False, delay_s=0.0, pauses=True)
    last = await one.attempt(message(), Handler(Outage()), policy, redelivered=True)
    assert ended(last) == (State.EXHAUSTED, 2, "aborts")
    assert getattr(last, "pauses", None) is True


@pytest.mark.parametrize("answer", [Reject("never"), Retry(after=60)], ids=["reject", "retry"])
async def test_an_answer_is_not_for_a_consumers_table_to_judge(
    process: StartProcess, database: Database, answer: Exception
) -> None:
    outcome = await (await process()).attempt(message(), Handler(answer), choosing({Exception: "pause"}))
    if isinstance(answer, Reject):
        assert ended(outcome)[0] is State.REJECTED
    else:
        waits(outcome, charged=True, delay_s=60.0)


async def test_a_handler_whose_time_is_up_is_charged_whatever_its_consumer_chose(
    process: StartProcess, database: Database
) -> None:
    policy = choosing({"57014": "abort", TimeoutError: "abort"}, replace(PACED, handler_timeout_s=0.2))

    async def sleep(_: Attempt, tx: Tx) -> None:
        await tx.execute("select pg_sleep(60)")

    waits(await (await process()).attempt(message(), Handler(sleep), policy), charged=True)
    assert (await standing(database, message())).attempts == (("timed_out", True),)


# Answers in groups.


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([Reject("first"), Reject("second")], "first"),
        ([Retry(after=60), Reject("never")], "never"),
        ([ExceptionGroup("inner", [Retry(), Reject("deep")]), Retry()], "deep"),
    ],
    ids=["rejections", "a retry and a rejection", "nested"],
)
async def test_a_group_of_nothing_but_answers_is_a_rejection_if_one_of_them_is(
    process: StartProcess, database: Database, errors: list[Exception], reason: str
) -> None:
    outcome = await (await process()).attempt(message(), Handler(ExceptionGroup("all", errors)), PACED)
    assert ended(outcome) == (State.REJECTED, 1, reason)


async def test_of_several_retries_the_longest_wait_counts(process: StartProcess) -> None:
    several = ExceptionGroup("all", [Retry(after=30), Retry(), Retry(after=90), Retry(after=60)])
    waits(await (await process()).attempt(message(), Handler(several), PACED), charged=True, delay_s=90.0)


@pytest.mark.parametrize("answer", [Reject("never"), Retry(after=60)], ids=["reject", "retry"])
async def test_an_answer_beside_another_error_is_a_failure_like_any_other(
    process: StartProcess, database: Database, answer: Exception
) -> None:
    mixed = ExceptionGroup("both", [answer, ValueError("no")])
    waits(await (await process()).attempt(message(), Handler(mixed), PACED), charged=True)
    assert await standing(database, message()) == CHARGED


async def test_a_deadlock_beside_a_rejection_runs_again_and_the_rejection_is_heard_then(
    process: StartProcess, database: Database
) -> None:
    one, deadlocks = await process(), 1

    async def both(_: Attempt, tx: Tx) -> None:
        nonlocal deadlocks
        errors: list[Exception] = [Reject("never")]
        if deadlocks:
            deadlocks -= 1
            try:
                await tx.execute("do $$ begin raise exception using errcode = '40P01'; end $$")
            except Exception as error:
                errors.append(error)
        raise ExceptionGroup("both", errors)

    assert ended(await one.attempt(message(), Handler(both), PACED)) == (State.REJECTED, 1, "never")
    assert deadlocks == 0


# A session that is lost, and what only looks like it.


@pytest.mark.parametrize(("key", "sqlstate"), [("08", "08006"), ("08001", "08001"), ("57P01", "57P01")])
async def test_a_foreign_servers_lost_connection_is_judged_as_chosen_since_the_session_lives(
    process: StartProcess, key: str, sqlstate: str
) -> None:
    one = await process()
    outcome = await one.attempt(message(), meeting(sqlstate), choosing({key: "pause"}))
    assert "Error" in waits(outcome, charged=False, pauses=True)


async def test_a_lost_connection_of_the_handlers_own_is_judged_as_chosen(process: StartProcess) -> None:
    async def meet(_: Attempt, tx: Tx) -> None:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    one = await process()
    policy = choosing({asyncpg.PostgresConnectionError: "abort"})
    assert waits(await one.attempt(message(), Handler(meet), policy), charged=False) == "ConnectionDoesNotExistError"


@HOT_AND_COUNTED
async def test_no_choice_is_asked_about_a_tx_whose_session_is_lost(
    process: StartProcess, database: Database, redelivered: bool
) -> None:
    async def meet(_: Attempt, tx: Tx) -> None:
        pid = await tx.fetchval("select pg_backend_pid()")
        await database.execute(f"select pg_terminate_backend({pid})")
        await tx.execute("select pg_sleep(60)")

    one = await process()
    charging = dict.fromkeys(("08", "08003", "08006", "57", "57P01"), "charge")
    policy = choosing({**charging, asyncpg.PostgresError: "charge", OSError: "charge", Exception: "charge"})
    outcome = await one.attempt(message(), Handler(meet), policy, redelivered=redelivered)
    assert isinstance(outcome, Unknown), outcome
    await eventually(one.debts.settle, what="the lost session having ended")
    ended_as = [tuple(row) for row in await database.fetch("select outcome, charged from inbox.attempt")]
    assert ended_as == ([("aborted", False)] if redelivered else [])
