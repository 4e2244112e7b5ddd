"""A consumer's topology as a value, and which queue arguments are refused because they lose messages."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.errors import TopologyMismatch, TopologyRefused
from consumers.topology import Binding, Exchange, Finding, Status, Topology, describe, require


def topology(**options: Any) -> Topology:
    given = {"consumer": "orders", "queue": "orders", "steps_s": [0.25, 5.0, 300.0], "redeliveries": 25}
    return describe(**{**given, **options})


def test_each_step_has_a_parking_queue_that_leads_back_to_the_work_queue() -> None:
    parking = topology().parking

    assert [queue.name for queue in parking] == ["orders.park.250ms", "orders.park.5s", "orders.park.5m"]
    assert parking[1].declared("3.10.8") == {
        "x-queue-type": "quorum",
        "x-message-ttl": 5000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "orders",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def test_dead_letters_have_a_queue_without_limits_unless_they_are_switched_off() -> None:
    described = topology(arguments={"x-delivery-limit": 250}, queue_type="quorum")

    assert [queue.name for queue in described.queues][-1] == "orders.dead"
    assert described.queues[-1].declared("3.10.8") == {"x-queue-type": "quorum"}
    assert described.for_attempts() == topology(arguments={"x-delivery-limit": 250}, dead_letters=False)
    assert "orders.dead" not in [queue.name for queue in described.for_attempts().queues]


def test_parking_queues_are_quorum_queues_also_for_a_classic_work_queue() -> None:
    described = topology(queue_type="classic")

    assert described.work.declared("4.0.5") == {"x-queue-type": "classic"}
    assert {queue.type for queue in described.parking} == {"quorum"}


@pytest.mark.parametrize(
    ("version", "limit"),
    [("3.10.8", None), ("3.13.7", None), ("4.0.0", -1), ("4.2.1", -1), ("4.3.0-rc.1", -1), ("10.1", -1), ("", None)],
)
def test_the_delivery_limit_is_taken_away_where_a_broker_has_one_by_itself(version: str, limit: int | None) -> None:
    described = topology()

    assert described.work.declared(version).get("x-delivery-limit") == limit
    assert all("x-delivery-limit" not in queue.declared(version) for queue in described.parking)
    assert described.dead is not None
    assert described.dead.declared(version).get("x-delivery-limit") == limit


def test_a_configured_delivery_limit_stays() -> None:
    described = topology(arguments={"x-delivery-limit": 250})

    assert described.work.declared("3.10.8")["x-delivery-limit"] == 250
    assert described.work.declared("4.1.0")["x-delivery-limit"] == 250


def test_no_limit_is_refused_where_it_would_mean_dropping_at_the_first_requeue() -> None:
    work = topology(arguments={"x-delivery-limit": -1}).work

    assert work.declared("4.0.0")["x-delivery-limit"] == -1
    with pytest.raises(TopologyMismatch, match=r"RabbitMQ 3\.10\.8 would drop each message at its first requeue"):
        work.declared("3.10.8")


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "problem"),
    [
        ({"x-delivery-limit": 20}, {}, "x-delivery-limit", "before they are used up"),
        ({"x-delivery-limit": True}, {}, "x-delivery-limit", "before they are used up"),
        ({"x-delivery-limit": 10_000}, {"queue_type": "classic"}, "x-delivery-limit", "only quorum queues"),
        ({"x-message-ttl": 60_000}, {}, "x-message-ttl", "before they are processed"),
        ({"x-expires": 60_000}, {}, "x-expires", "while the fleet is stopped"),
        ({"x-max-length": 10}, {}, "x-max-length", "drop its oldest messages"),
        ({"x-max-length-bytes": 10, "x-overflow": "drop-head"}, {}, "x-max-length-bytes", "drop its oldest"),
        ({"x-dead-letter-exchange": ""}, {}, "x-dead-letter-routing-key", "such cycles"),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.park.5s", "x-message-ttl": 1000},
            {},
            "x-dead-letter-routing-key",
            "such cycles",
        ),
        (
            {"x-dead-letter-exchange": "shop", "x-message-ttl": 1000},
            {"bindings": [Binding(exchange="shop")]},
            "x-dead-letter-exchange",
            "such cycles",
        ),
    ],
)
def test_arguments_that_lose_messages_are_refused_by_name(
    arguments: dict[str, Any], options: dict[str, Any], argument: str, problem: str
) -> None:
    with pytest.raises(TopologyRefused, match=problem) as refused:
        topology(arguments=arguments, **options)

    assert (refused.value.queue, refused.value.argument) == ("orders", argument)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 10, "x-overflow": "reject-publish"},
        {"x-dead-letter-exchange": "elsewhere", "x-message-ttl": 60_000},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "elsewhere", "x-max-length": 10},
        {"x-single-active-consumer": True},
        {"x-delivery-limit": 250},
    ],
)
def test_arguments_that_lose_nothing_stay(arguments: dict[str, Any]) -> None:
    assert arguments.items() <= topology(arguments=arguments).work.declared("3.10.8").items()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queue": "q" * 247}, "too long"),
        ({"queue": "orders[eu]", "steps_s": []}, "does not take it"),
        ({"bindings": [Binding(exchange="shop!")]}, "does not take it"),
        ({"bindings": [Binding(exchange="e" * 128)]}, "does not take it"),
        ({"bindings": [Binding(exchange="")]}, "default exchange"),
    ],
)
def test_names_that_cannot_be_declared_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(TopologyRefused, match=problem):
        topology(**options)


def test_an_exchange_is_the_fleets_if_any_of_its_bindings_says_so() -> None:
    bindings = [
        Binding(exchange="shop", routing_key="a"),
        Binding(exchange="shop", routing_key="b", exchange_type="topic"),
        Binding(exchange="theirs"),
    ]

    assert topology(bindings=bindings).exchanges == (Exchange(name="shop", type="topic"), Exchange(name="theirs"))


def test_requiring_names_everything_that_is_missing_or_differs_and_nothing_else() -> None:
    def found(name: str, status: Status, kind: Any = "queue", detail: str = "") -> Finding:
        return Finding(consumer="orders", kind=kind, name=name, status=status, detail=detail)

    fine = [found("a", Status.UNCHANGED), found("b", Status.NOT_COMPARED), found("c", Status.NOT_VISIBLE, "binding")]
    require(fine)

    with pytest.raises(TopologyMismatch) as mismatch:
        require([*fine, found("d", Status.MISSING), found("e", Status.DIFFERENT, detail="other ttl")])

    assert mismatch.value.differences == ("queue d is missing", "queue e is different (other ttl)")
    assert mismatch.value.missing == {"d"}
