"""The plan: which policy a message type gets, which parking queues that takes, and what does not fit the handlers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumers.config import parse
from consumers.errors import ConfigError
from consumers.plan import FleetPlan, plan
from consumers.sizing import pool_specs

HANDLERS = """
from consumers.registry import Consumer

invoices = Consumer("invoices")

@invoices.on("plain")
async def plain(envelope, tx): ...

@invoices.on("own", max_attempts=7, timeout="10s", pacing=["0s", "7s"])
async def own(envelope, tx): ...

@invoices.on("*", max_attempts=2)
async def rest(envelope, tx): ...
"""

Planned = Callable[..., FleetPlan]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planned]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(tables: str = "", *, consumer: str = "", handlers: str = HANDLERS) -> FleetPlan:
        (tmp_path / "plan_handlers.py").write_text(handlers)
        sys.modules.pop("plan_handlers", None)
        text = f"""
            [service]
            name = "billing"
            [pools.invoices]
            [consumers.invoices]
            queue = "billing.invoices"
            handler = "plan_handlers:invoices"
            {consumer}
            {tables}
            """
        return plan(parse(text, file="fleet.toml"))

    yield make
    sys.modules.pop("plan_handlers", None)


def test_the_file_wins_over_the_decorator_and_the_decorator_over_the_consumer(planned: Planned) -> None:
    invoices = planned(
        """
        [consumers.invoices.types.own]
        max_attempts = 9
        [consumers.invoices.types.seldom]
        pacing = ["1m"]
        """,
        consumer='max_attempts = 4\nmax_aborts = 8\nhandler_timeout = "20s"\npacing = ["1s"]\ncontention_step = "2s"',
    ).consumers["invoices"]
    policies = {name: invoices.policy_for(name) for name in ("plain", "own", "seldom", "unheard of", "")}
    assert {name: policy.max_attempts for name, policy in policies.items()} == {
        "plain": 4,
        "own": 9,
        "seldom": 2,
        "unheard of": 2,
        "": 2,
    }
    assert (policies["own"].handler_timeout_s, policies["own"].pacing_s) == (10, (0, 7))
    assert (policies["plain"].handler_timeout_s, policies["plain"].pacing_s) == (20, (1,))
    assert policies["seldom"].pacing_s == (60,)
    assert {policy.max_aborts for policy in policies.values()} == {8}
    assert invoices.parking_steps_s == (1, 2, 7, 60)
    assert invoices.longest_handler_timeout_s == 20


def test_numbers_of_a_policy_are_plain_numbers(planned: Planned) -> None:
    policy = planned().consumers["invoices"].policy_for("plain")
    assert type(policy.handler_timeout_s) is float
    assert {type(step) for step in policy.pacing_s} == {float}


@pytest.mark.parametrize(
    ("reference", "problem"),
    [("plan_handlers:invoice", "did you mean invoices"), ("nowhere_at_all:invoices", "no module nowhere_at_all")],
)
def test_a_handler_that_is_not_found_is_a_mistake_in_the_file(planned: Planned, reference: str, problem: str) -> None:
    planned()
    text = f'[service]\nname = "b"\n[pools.invoices]\n[consumers.invoices]\nqueue = "q"\nhandler = "{reference}"'
    with pytest.raises(ConfigError, match=problem) as caught:
        plan(parse(text, file="fleet.toml"))
    assert (caught.value.key, caught.value.value) == ("consumers.invoices.handler", f'"{reference}"')


def test_settings_of_a_type_without_handler_are_refused(planned: Planned) -> None:
    handlers = HANDLERS.replace('@invoices.on("*", max_attempts=2)', "")
    with pytest.raises(ConfigError, match="no handler is registered") as caught:
        planned('[consumers.invoices.types."plane"]', handlers=handlers)
    assert caught.value.key == 'consumers.invoices.types."plane"'
    assert caught.value.allowed.endswith("own, plain")


@pytest.mark.parametrize(("timeout", "limit"), [("40s", "drain.deadline"), ("41s", "drain.deadline")])
def test_the_timeout_of_a_decorator_must_fit_the_process_too(planned: Planned, timeout: str, limit: str) -> None:
    with pytest.raises(ConfigError, match=limit) as caught:
        planned(handlers=HANDLERS.replace('timeout="10s"', f'timeout="{timeout}"'))
    assert caught.value.key.startswith("timeout of the decorator of plan_handlers:own (")


def test_a_decorator_counts_for_how_late_a_copy_may_be(planned: Planned) -> None:
    handlers = HANDLERS.replace('pacing=["0s", "7s"]', 'pacing=["1h"]')
    with pytest.raises(ConfigError, match="the longest step is 1h, a handler may take 30s") as caught:
        planned('[sweep]\nslack = "1h"', handlers=handlers)
    assert caught.value.key == "sweep.slack"
    assert planned('[sweep]\nslack = "3810s"', handlers=handlers)


def test_the_steps_of_all_types_together_are_bounded(planned: Planned) -> None:
    steps = ", ".join(str(step) for step in range(20, 35))
    with pytest.raises(ConfigError, match="needs 17 parking queues") as caught:
        planned(consumer=f"pacing = [{steps}]")
    assert caught.value.key == "consumers.invoices.pacing"


def test_names_of_parking_queues_stay_below_the_brokers_limit(planned: Planned) -> None:
    text = '[service]\nname = "b"\n[pools.invoices]\n[consumers.invoices]\n'
    text += 'handler = "plan_handlers:invoices"\nqueue = "{}"'
    planned()
    assert plan(parse(text.format("q" * 245), file="fleet.toml"))
    with pytest.raises(ConfigError, match="256 bytes") as caught:
        plan(parse(text.format("q" * 247), file="fleet.toml"))
    assert caught.value.key == "consumers.invoices.queue"


@pytest.mark.parametrize(
    ("queue", "problem"),
    [("park.30s", "consumer invoices parks messages in it"), ("dead", "consumer invoices puts its dead letters there")],
)
def test_a_queue_of_the_fleets_own_is_nobodys_work_queue(planned: Planned, queue: str, problem: str) -> None:
    other = f"""
        [consumers.other]
        queue = "billing.invoices.{queue}"
        pool = "invoices"
        handler = "plan_handlers:other"
        """
    handlers = HANDLERS + '\nother = Consumer("other")\nother.on("*")(rest)\n'
    with pytest.raises(ConfigError, match=problem) as caught:
        planned(other, handlers=handlers)
    assert caught.value.key == "consumers.other.queue"


REPORTING = (
    HANDLERS
    + """
@invoices.on_exhausted
async def report(record, tx): ...
"""
)


def test_records_of_exhausted_messages_have_the_consumers_own_policy(planned: Planned) -> None:
    made = planned(
        consumer='max_attempts = 4\nhandler_timeout = "20s"\npacing = ["0s", "9s"]', handlers=REPORTING
    ).consumers["invoices"]
    policy = made.exhaustion_policy
    assert (policy.max_attempts, policy.handler_timeout_s, policy.pacing_s) == (4, 20.0, (0.0, 9.0))


def test_delivering_records_takes_one_connection_more_for_as_long_as_the_consumer_allows(planned: Planned) -> None:
    consumer = 'lanes = 3\nhandler_timeout = "20s"'
    types = "\n".join(f'[consumers.invoices.types."{name}"]\nhandler_timeout = "5s"' for name in ("*", "plain"))
    for handlers, lanes, statement_s in ((HANDLERS, 3, 12), (REPORTING, 4, 22)):
        spec = pool_specs(planned(types, consumer=consumer, handlers=handlers))[0]
        assert (spec.name, spec.lanes, spec.size) == ("invoices", lanes, lanes + 1)
        assert spec.session.statement_timeout_s == statement_s
