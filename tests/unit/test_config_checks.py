"""Start-up refusals: settings that are fine one by one and cannot work together."""

from __future__ import annotations

import pytest

from consumers import connection
from consumers import fleet as process
from consumers.config import FleetConfig, parse
from consumers.config.rules import LAST_S
from consumers.errors import ConfigError
from consumers.http import STOP_S
from consumers.settlement import FLUSH_S


def fleet(
    consumers: str = "", tables: str = "", *, consumer: str = "", pool: str = "", service: str = ""
) -> FleetConfig:
    return parse(
        f"""
        [service]
        name = "billing"
        {service}
        [pools.invoices]
        {pool}
        [consumers.invoices]
        queue = "billing.invoices"
        handler = "billing.handlers:invoices"
        {consumer}
        {consumers}
        {tables}
        """,
        file="fleet.toml",
    )


def refused_key(*args: str, **kwargs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        fleet(*args, **kwargs)
    return caught.value.key


def test_a_handler_may_not_outlive_the_drain() -> None:
    assert fleet(consumer='handler_timeout = "34s"').drain.deadline_s == 35
    assert refused_key(consumer='handler_timeout = "35s"') == "consumers.invoices.handler_timeout"
    slow = '[consumers.invoices.types."a.b"]\nhandler_timeout = "40s"'
    assert refused_key(slow) == 'consumers.invoices.types."a.b".handler_timeout'


SLOW_DRAIN = '[drain]\ndeadline = "2h"\ngrace_period = "3h"'


@pytest.mark.parametrize(
    ("consumer", "key"),
    [
        ('lanes = 4\nlook_ahead = 0\nhandler_timeout = "28m"', None),
        ('lanes = 4\nlook_ahead = 0\nhandler_timeout = "29m"', "breaker.hold"),
        ('lanes = 4\nlook_ahead = 0\nhandler_timeout = "30m"', "consumers.invoices.handler_timeout"),
        ('lanes = 4\nlook_ahead = 4\nhandler_timeout = "14m"', None),
        ('lanes = 4\nlook_ahead = 4\nhandler_timeout = "15m"', "consumers.invoices.handler_timeout"),
        ('lanes = 1\nlook_ahead = 9\nhandler_timeout = "3m"', "consumers.invoices.handler_timeout"),
    ],
)
def test_a_delivery_may_not_be_held_longer_than_the_broker_waits(consumer: str, key: str | None) -> None:
    if key is None:
        assert fleet(consumer=consumer, tables=SLOW_DRAIN).consumers
    else:
        assert refused_key(consumer=consumer, tables=SLOW_DRAIN) == key


def test_the_steps_of_a_stop_fit_into_the_grace_period() -> None:
    assert refused_key(tables='[drain]\ngrace_period = "57s"') == "drain.grace_period"
    assert fleet(tables='[drain]\ngrace_period = "58s"').drain.grace_period_s == 58
    assert refused_key(tables='[drain]\nclose_timeout = "8s"') == "drain.grace_period"


def test_what_a_stop_takes_beside_its_configured_steps_is_the_sum_of_their_bounds() -> None:
    one_connection_s = connection.CLOSE_TIMEOUT_S + connection._ABORT_TIMEOUT_S
    consumers_s, publisher_s = FLUSH_S + one_connection_s, one_connection_s
    # Leaving, lifespans and pools share close_timeout, and each gets a moment if nothing is left of it.
    moments_s = 3 * process._LEAST_S
    assert LAST_S - 0.5 < consumers_s + publisher_s + moments_s + STOP_S <= LAST_S


def test_a_heartbeat_may_be_late_three_times_before_a_process_counts_as_dead() -> None:
    assert refused_key(tables='[members]\nheartbeat = "5s"\nexpiry = "15s"') == "members.expiry"
    assert fleet(tables='[members]\nheartbeat = "5s"\nexpiry = "16s"').members.expiry_s == 16


@pytest.mark.parametrize("heartbeat", ["500ms", "1.5s", "2h"])
def test_the_brokers_heartbeat_is_whole_seconds(heartbeat: str) -> None:
    assert refused_key(tables=f'[broker]\nheartbeat = "{heartbeat}"') == "broker.heartbeat"


def test_waits_of_the_breaker_grow() -> None:
    assert refused_key(tables='[breaker]\nfirst_wait = "31s"') == "breaker.first_wait"


def test_receipts_are_kept_for_an_hour_at_least() -> None:
    assert refused_key(tables='[receipts]\nretention = "59m"') == "receipts.retention"


@pytest.mark.parametrize("table", ["receipts]\nretention", "retention]\nterminal"])
def test_what_has_ended_is_remembered_for_longer_than_a_copy_can_be_parked(table: str) -> None:
    steps = 'pacing = ["0s", "1d"]'
    key = table.replace("]\n", ".")
    needed = 2 * (86_400 + 180 + 30)
    assert fleet(consumer=steps, tables=f"[{table} = {needed}").consumers
    with pytest.raises(ConfigError, match=r"consumers\.invoices\.pacing has a step of 1d.* at least 2887m") as caught:
        fleet(consumer=steps, tables=f"[{table} = {needed - 1}")
    assert caught.value.key == key
    assert refused_key(f"[consumers.invoices.types.a]\n{steps}", f"[{table} = {needed - 1}") == key
    assert refused_key(consumer='contention_step = "1d"', tables=f"[{table} = {needed - 1}") == key


def test_a_message_is_left_alone_for_as_long_as_its_copy_may_be_late_by_itself() -> None:
    needed = 300 + 180 + 30
    assert fleet(tables=f"[sweep]\nslack = {needed}").sweep.slack_s == needed
    with pytest.raises(ConfigError, match=r"consumer invoices .* step is 5m, .* at least 510s") as caught:
        fleet(tables=f"[sweep]\nslack = {needed - 1}")
    assert caught.value.key == "sweep.slack"
    of_a_type = '[consumers.invoices.types.a]\npacing = ["1h"]\nhandler_timeout = "34s"'
    needed = 3600 + 180 + 34
    assert fleet(of_a_type, f"[sweep]\nslack = {needed}").sweep.slack_s == needed
    assert refused_key(of_a_type, f"[sweep]\nslack = {needed - 1}") == "sweep.slack"
    assert refused_key(consumer='contention_step = "10m"', tables=f"[sweep]\nslack = {needed // 6}") == "sweep.slack"


def test_a_message_gets_another_copy_at_latest_when_it_may_get_one_at_all() -> None:
    assert fleet(tables='[sweep]\nslack = "2h"\nat_latest = "2h"').sweep.at_latest_s == 7200
    assert refused_key(tables='[sweep]\nslack = "2h"\nat_latest = "119m"') == "sweep.at_latest"
    assert refused_key(tables='[sweep]\nat_latest = "509s"') == "sweep.at_latest"
    assert fleet(consumer='pacing = ["2d"]').sweep.at_latest_s is None


def test_a_pool_must_be_declared() -> None:
    with pytest.raises(ConfigError, match=r"no table \[pools.other\].*\(invoices\)") as caught:
        fleet(consumer='pool = "other"')
    assert caught.value.key == "consumers.invoices.pool"


def test_a_pool_must_be_used() -> None:
    assert refused_key(tables="[pools.spare]") == "pools.spare"


def test_the_fleets_own_pool_is_not_for_consumers() -> None:
    assert refused_key(consumer='pool = "housekeeping"', tables="[pools.housekeeping]") == "pools.housekeeping"


def test_a_pool_with_nested_connections_is_not_smaller_than_its_lanes_need() -> None:
    assert refused_key(consumer="lanes = 3", pool="nested = 1\nsize = 5") == "pools.invoices.size"
    assert fleet(consumer="lanes = 3", pool="nested = 1\nsize = 6").pools["invoices"].size == 6
    assert fleet(consumer="lanes = 3", pool="size = 1").pools["invoices"].size == 1


OTHER = '[consumers.other]\nhandler = "a:b"\npool = "invoices"\nqueue = '


def test_a_queue_has_one_consumer() -> None:
    with pytest.raises(ConfigError, match="consumer invoices consumes this queue") as caught:
        fleet(OTHER + '"billing.invoices"')
    assert caught.value.key == "consumers.other.queue"
    assert fleet(OTHER + '"billing.other"').consumers["other"].pool == "invoices"


def test_two_consumers_never_share_message_keys() -> None:
    assert refused_key(OTHER + '"q"\nkey_name = "invoices"') == "consumers.other.key_name"
    assert refused_key(OTHER + '"q"', consumer='key_name = "other"') == "consumers.other.key_name"


def test_queue_names_of_the_broker_are_refused() -> None:
    assert refused_key(OTHER + '"amq.gen-1"') == "consumers.other.queue"


def test_the_queue_type_stands_in_one_place() -> None:
    key = refused_key(consumer='queue_arguments = { x-queue-type = "classic" }')
    assert key == "consumers.invoices.queue_arguments.x-queue-type"


def test_application_names_are_not_cut() -> None:
    service, pool = "a" * 24, "b" * 40
    consumer = f'[consumers.c]\nqueue = "q"\nhandler = "a:b"\npool = "{pool}"'
    with pytest.raises(ConfigError, match="PostgreSQL would cut it") as caught:
        parse(f'[service]\nname = "{service}"\n[pools.{pool}]\n{consumer}', file="fleet.toml")
    assert caught.value.key == f"pools.{pool}"


def test_pacing_has_a_bounded_number_of_steps() -> None:
    assert refused_key(consumer=f"pacing = [{', '.join(['1'] * 17)}]") == "consumers.invoices.pacing"
    slow = f"[consumers.invoices.types.a]\npacing = [{', '.join(['1'] * 17)}]"
    assert refused_key(slow) == 'consumers.invoices.types."a".pacing'


@pytest.mark.parametrize("table", ["database", "broker"])
def test_a_url_has_one_source(table: str) -> None:
    assert refused_key(tables=f'[{table}]\nurl_env = "A"\nurl_file = "/b"') == f"{table}.url_file"


def test_an_exchange_is_declared_with_one_type() -> None:
    def bound(exchange: str, kind: str) -> str:
        return f'bindings = [{{ exchange = "shop", exchange_type = "topic" }}, {{ exchange = "{exchange}"{kind} }}]'

    assert fleet(consumer=bound("shop", "")).consumers
    assert fleet(consumer=bound("other", ', exchange_type = "fanout"')).consumers
    key = "consumers.invoices.bindings[1].exchange_type"
    assert refused_key(consumer=bound("shop", ', exchange_type = "fanout"')) == key
    assert refused_key(consumer=bound("amq.topic", ', exchange_type = "topic"')) == key
    assert refused_key(OTHER + '"q"\n' + bound("shop", ', exchange_type = "direct"')) == key.replace(
        "invoices", "other"
    )
