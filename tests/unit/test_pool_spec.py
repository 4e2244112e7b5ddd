"""What a pool is to be, and what is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pools import PoolConfigError, PoolError, PoolSpec, SessionSettings

SESSION = SessionSettings.for_handlers(30)


def spec(**differences: Any) -> PoolSpec:
    fields: dict[str, Any] = {"name": "invoices", "application_name": "billing-invoices", "session": SESSION}
    return PoolSpec(**(fields | differences))


def refusal(**differences: Any) -> PoolConfigError:
    with pytest.raises(PoolConfigError) as caught:
        spec(**differences)
    assert isinstance(caught.value, PoolError)
    return caught.value


def test_the_size_is_lanes_times_one_plus_nested_plus_headroom() -> None:
    assert spec(lanes=8).size == 9
    assert spec(lanes=8, nested=2, headroom=3).size == 27
    assert spec(headroom=2).size == 2


def test_a_fixed_size_may_be_smaller_than_its_workers_concurrency() -> None:
    assert spec(lanes=16, fixed_size=4).size == 4


def test_a_fixed_size_on_which_nested_work_could_wait_for_itself_is_refused() -> None:
    assert spec(lanes=3, nested=1, fixed_size=4).size == 4
    error = refusal(lanes=3, nested=1, fixed_size=3)
    assert (error.pool, error.key, error.value) == ("invoices", "fixed_size", 3)
    assert "more than 3" in str(error)


def test_a_pool_without_connections_is_refused() -> None:
    assert refusal(headroom=0).key == "size"
    assert refusal(lanes=4, fixed_size=0).key == "size"


@pytest.mark.parametrize("key", ["lanes", "nested", "headroom"])
def test_a_negative_count_is_refused_by_name(key: str) -> None:
    error = refusal(**{"lanes": 4, key: -1})
    assert (error.key, error.value, error.allowed) == (key, -1, "zero or more")


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, 3e6])
@pytest.mark.parametrize("key", ["acquire_timeout_s", "connect_timeout_s", "release_timeout_s"])
def test_a_deadline_that_is_none_is_refused_by_name(key: str, value: float) -> None:
    assert refusal(**{key: value}).key == key


def test_session_settings_that_the_server_would_refuse_are_refused_by_name_before() -> None:
    too_long = SessionSettings.for_handlers(30 * 24 * 3600)
    assert refusal(session=too_long).key == "session.statement_timeout_s"
    no_probes = SessionSettings(statement_timeout_s=1, idle_in_transaction_timeout_s=2, keepalive_count=0)
    assert refusal(session=no_probes).key == "session.keepalive_count"


@pytest.mark.parametrize("name", ["", "x" * 64, "büro", "two\nlines"])
def test_an_application_name_that_the_server_would_cut_or_change_is_refused(name: str) -> None:
    assert spec(application_name="x" * 63).application_name == "x" * 63
    assert refusal(application_name=name).key == "application_name"


def test_the_start_packet_holds_every_setting_in_the_servers_units() -> None:
    assert SESSION.server_settings(150018) == {
        "statement_timeout": "32000",
        "idle_in_transaction_session_timeout": "40000",
        "lock_timeout": "5000",
        "client_connection_check_interval": "2000",
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "3",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "15000",
        "default_transaction_isolation": "read committed",
    }


def test_a_transaction_timeout_is_only_said_to_servers_that_know_it() -> None:
    for version_num in (0, 150018, 160099):
        assert "transaction_timeout" not in SESSION.server_settings(version_num)
    for version_num in (170000, 180006):
        assert SESSION.server_settings(version_num)["transaction_timeout"] == "50000"
    without = SessionSettings(statement_timeout_s=1, idle_in_transaction_timeout_s=2)
    assert "transaction_timeout" not in without.server_settings(180006)


def test_a_duration_below_a_millisecond_does_not_become_no_limit() -> None:
    settings = SessionSettings(statement_timeout_s=0.0001, idle_in_transaction_timeout_s=1).server_settings()
    assert settings["statement_timeout"] == "1"


def test_a_handler_that_keeps_its_time_meets_none_of_the_servers_limits() -> None:
    handlers = SessionSettings.for_handlers(30)
    assert handlers.transaction_timeout_s is not None
    assert 30 < handlers.statement_timeout_s < handlers.idle_in_transaction_timeout_s < handlers.transaction_timeout_s
    assert handlers.command_timeout_s > handlers.statement_timeout_s


def test_behind_a_transaction_pooler_nothing_is_said_at_the_start() -> None:
    pooled = SessionSettings(statement_timeout_s=1, idle_in_transaction_timeout_s=2, pooler=True)
    assert pooled.server_settings(180006) == {}
