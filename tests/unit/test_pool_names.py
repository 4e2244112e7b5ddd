"""The pools of a process by name, and what a pool says before it is open."""

from __future__ import annotations

import pytest

from pools import PoolConfigError, PoolNotOpen, Pools, PoolSpec, PoolTimeout, SessionSettings
from pools.pooler import sessions_are_shared

SECRET = "postgresql://billing:hunter2@db.invalid/billing"


def pools(*names: str) -> Pools:
    session = SessionSettings.for_handlers(30)
    return Pools(SECRET, [PoolSpec(name=name, application_name=name, lanes=1, session=session) for name in names])


def test_a_pool_is_found_by_its_name() -> None:
    assert pools("invoices", "service")["service"].name == "service"
    assert [pool.name for pool in pools("invoices", "service")] == ["invoices", "service"]


def test_an_unknown_name_gets_the_one_that_was_probably_meant() -> None:
    with pytest.raises(PoolConfigError, match=r"one of invoices, service; did you mean invoices\?"):
        pools("invoices", "service")["invoicse"]
    with pytest.raises(PoolConfigError, match=r"one of invoices, service$"):
        pools("invoices", "service")["zzz"]


def test_two_pools_of_one_name_are_refused() -> None:
    with pytest.raises(PoolConfigError, match="a name of its own"):
        pools("invoices", "invoices")


async def test_a_pool_that_is_not_open_says_so_by_name() -> None:
    pool = pools("invoices")["invoices"]
    with pytest.raises(PoolNotOpen, match="pool invoices is not open"):
        await pool.checkout()
    with pytest.raises(PoolNotOpen):
        async with pool.acquire():
            pass
    await pool.expire()
    await pool.close()
    assert (pool.statistics().size, pool.statistics().open, pool.statistics().in_use) == (2, 0, 0)


def test_the_database_password_shows_nowhere() -> None:
    found = pools("invoices")
    assert "hunter2" not in repr(found) + repr(found["invoices"]) + repr(found.statistics())


def test_a_timeout_says_whether_the_pool_or_the_server_is_too_small() -> None:
    small = PoolTimeout(pool="invoices", size=9, limit=9, waiters=3, waited_s=5.001)
    assert str(small) == (
        "pool invoices: no connection within 5 s; all 9 are in use, 3 more wait; "
        "the pool is smaller than what works on it, or something keeps its connections"
    )
    crowded = PoolTimeout(pool="invoices", size=9, limit=2, waiters=3, waited_s=5.001)
    assert "the server refuses more than 2 of 9 connections" in str(crowded)


def test_sessions_are_shared_if_one_client_meets_two_or_two_clients_meet_one() -> None:
    assert not sessions_are_shared([(1, 2), (1, 2), (1, 2)])
    assert sessions_are_shared([(1, 1), (1, 1)])
    assert sessions_are_shared([(1, 2), (3, 2)])
    assert sessions_are_shared([(1, 2), (1, 3)])
    assert sessions_are_shared([(1, 2), (2, 1)])
