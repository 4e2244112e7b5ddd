"""Alive and ready are two questions: dead tasks answer the one, all that keeps work from being done the other."""

from __future__ import annotations

import asyncio

import pytest

from consumers.health import Health, Report


async def ended(outcome: str) -> asyncio.Task[object]:
    async def run() -> None:
        if outcome == "failed":
            raise ValueError("with a secret in its text")

    task: asyncio.Task[object] = asyncio.create_task(run())
    if outcome == "cancelled":
        task.cancel()
    await asyncio.wait([task])
    return task


def test_a_process_is_not_ready_before_it_has_started() -> None:
    health = Health()
    assert health.ready().reasons == {"process": "starting"}

    health.started()

    assert health.ready() == Report()
    assert health.ready().ok


def test_every_reason_stands_in_the_answer() -> None:
    health = Health()
    health.started()
    health.set("database", False, "the pool cannot connect")
    health.condition("invoices", lambda: "the breaker is open")
    health.condition("audit", lambda: None)

    assert health.ready().reasons == {"database": "the pool cannot connect", "invoices": "the breaker is open"}

    health.set("database", True)
    assert set(health.ready().reasons) == {"invoices"}


def test_a_component_that_is_not_ready_for_no_said_reason_is_still_not_ready() -> None:
    health = Health()
    health.started()
    health.set("database", False)

    assert health.ready().reasons == {"database": "not ready"}


def test_a_condition_that_fails_is_not_met() -> None:
    def failing() -> str | None:
        raise KeyError("with a secret in its text")

    health = Health()
    health.started()
    health.condition("invoices", failing)

    assert health.ready().reasons == {"invoices": "its state cannot be told (KeyError)"}


def test_a_stopping_process_is_not_ready_again() -> None:
    health = Health()
    health.started()
    health.stopping()
    health.started()

    assert health.ready().reasons == {"process": "stopping"}


async def test_what_makes_it_unready_does_not_make_it_dead() -> None:
    health = Health()
    health.set("database", False, "down")
    health.condition("invoices", lambda: "not consuming")

    assert health.live().ok
    assert not health.ready().ok


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("ended", "its task has ended"),
        ("failed", "its task failed (ValueError)"),
        ("cancelled", "its task was cancelled"),
    ],
)
async def test_a_dead_task_makes_it_dead(outcome: str, reason: str) -> None:
    health = Health()
    health.started()
    health.task("heartbeat", await ended(outcome))

    assert health.live().reasons == {"heartbeat": reason}


async def test_tasks_may_end_while_the_process_stops() -> None:
    health = Health()
    health.task("heartbeat", await ended("cancelled"))
    health.stopping()

    assert health.live().ok


async def test_a_running_task_is_alive() -> None:
    health = Health()
    task: asyncio.Task[object] = asyncio.create_task(asyncio.Event().wait())
    health.task("heartbeat", task)

    assert health.live().ok

    task.cancel()
    await asyncio.wait([task])
