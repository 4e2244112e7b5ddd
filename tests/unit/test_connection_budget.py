"""All pools of all processes against one server's connections."""

from __future__ import annotations

from typing import Any

import pytest

from pools import (
    ConnectionBudget,
    PoolError,
    PoolOverBudget,
    PoolSpec,
    ServerLimits,
    SessionSettings,
    connection_budget,
)

LIMITS = ServerLimits(max_connections=100, reserved=3)


def pool(name: str, size: int) -> PoolSpec:
    session = SessionSettings.for_handlers(30)
    return PoolSpec(name=name, application_name=f"billing-{name}", session=session, fixed_size=size)


def budget(*pools: PoolSpec, **differences: Any) -> ConnectionBudget:
    arguments: dict[str, Any] = {"replicas": 3, "surge": 1, "share": 0.8, "limits": LIMITS}
    return connection_budget(pools, **(arguments | differences))


def test_every_pool_counts_in_every_process_surge_included() -> None:
    found = budget(pool("invoices", 9), pool("housekeeping", 2))
    assert found.wanted == 4 * 11
    assert found.allowed == 77
    assert found.shares == (("invoices", 9), ("housekeeping", 2))
    found.check()


def test_the_last_connection_that_is_allowed_may_be_taken_and_none_beyond() -> None:
    budget(pool("a", 77), replicas=1, surge=0).check()
    with pytest.raises(PoolOverBudget):
        budget(pool("a", 78), replicas=1, surge=0).check()


def test_a_refusal_names_every_pool_with_its_size_and_says_what_to_change() -> None:
    with pytest.raises(PoolOverBudget) as caught:
        budget(pool("invoices", 18), pool("service", 6)).check()
    error = caught.value
    assert isinstance(error, PoolError)
    assert (error.wanted, error.allowed, error.processes) == (96, 77, 4)
    assert error.shares == (("invoices", 18), ("service", 6))
    for said in ("96", "77", "invoices 18", "service 6", "4 processes", "0.8 of the server's 97", "surge", "lanes"):
        assert said in str(error)


def test_a_share_is_not_cut_short_by_binary_fractions() -> None:
    assert budget(share=0.29, limits=ServerLimits(max_connections=100, reserved=0)).allowed == 29
    assert budget(share=1.0).allowed == 97


def test_the_lowest_of_all_limits_counts_and_is_named() -> None:
    limits = ServerLimits(max_connections=100, reserved=3, role_limit=20, database_limit=30)
    found = budget(pool("a", 6), limits=limits)
    assert (found.allowed, found.limited_by) == (20, "the connection limit of our role")
    with pytest.raises(PoolOverBudget, match="limit of our role"):
        found.check()
    tight = ServerLimits(max_connections=100, reserved=3, role_limit=20, database_limit=10)
    assert budget(limits=tight).limited_by == "the connection limit of the database"
