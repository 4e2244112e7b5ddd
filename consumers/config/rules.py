"""Rules between values: what would start but could not work. Each refusal names the one key to change."""

from __future__ import annotations

from collections.abc import Callable

from consumers.config.checks import (
    application_name,
    check_faults,
    check_handler_timeout,
    check_memory,
    check_pacing,
    check_sweep,
    quoted,
    refused,
)
from consumers.config.fleet import FleetConfig
from consumers.config.settings import PoolSettings
from inbox.durations import text as written

MAX_APPLICATION_NAME_BYTES = 63
HOUSEKEEPING = "housekeeping"


def check(config: FleetConfig) -> None:
    """Check a configuration as a whole.

    :raises ConfigError: the first rule that it breaks.
    """
    for rule in _RULES:
        rule(config)


def _service(config: FleetConfig) -> None:
    if not config.consumers:
        problem = "no consumer is configured, so there is nothing to run"
        raise refused(config, "consumers", None, problem, "at least one table [consumers.NAME]")
    for pool in (*config.pools, HOUSEKEEPING):
        name = application_name(config, pool)
        if len(name) > MAX_APPLICATION_NAME_BYTES:
            raise refused(
                config,
                "service.name" if pool == HOUSEKEEPING else f"pools.{pool}",
                None,
                f"the application_name {name} has {len(name)} bytes, and PostgreSQL would cut it",
                f"names of service and pool with at most {MAX_APPLICATION_NAME_BYTES - 1} characters together",
            )


def _urls(config: FleetConfig) -> None:
    for table, settings in (("database", config.database), ("broker", config.broker)):
        given = [key for key in ("url_env", "url_file", "url") if getattr(settings, key) is not None]
        if len(given) > 1:
            problem = f"{table}.{given[0]} is set as well, and it is not clear which one counts"
            raise refused(config, f"{table}.{given[1]}", None, problem, "exactly one of url_env, url_file, url")


def _broker(config: FleetConfig) -> None:
    heartbeat_s = config.broker.heartbeat_s
    if not heartbeat_s.is_integer() or heartbeat_s > 3600:
        problem = "AMQP agrees on heartbeats in whole seconds"
        raise refused(config, "broker.heartbeat", quoted(heartbeat_s), problem, 'whole seconds from "1s" to "1h"')


def _pools(config: FleetConfig) -> None:
    if HOUSEKEEPING in config.pools:
        problem = "this name belongs to the fleet's own pool"
        allowed = "any other name; the fleet's own pool is set in [database.housekeeping]"
        raise refused(config, f"pools.{HOUSEKEEPING}", None, problem, allowed)
    for consumer in config.consumers.values():
        if consumer.pool not in config.pools:
            declared = ", ".join(sorted(config.pools)) or "none"
            raise refused(
                config,
                f"consumers.{consumer.name}.pool",
                f'"{consumer.pool}"',
                f"there is no table [pools.{consumer.pool}]",
                f"a declared pool ({declared}); an empty table [pools.{consumer.pool}] declares one",
            )
    for pool in config.pools.values():
        lanes = sum(consumer.lanes for consumer in config.consumers.values() if consumer.pool == pool.name)
        _pool(config, pool, lanes)


def _pool(config: FleetConfig, pool: PoolSettings, lanes: int) -> None:
    if not lanes:
        raise refused(
            config,
            f"pools.{pool.name}",
            None,
            "no consumer uses this pool, but it would take its share of the server's connections",
            f'a consumer with pool = "{pool.name}", or no such table',
        )
    need = lanes * (1 + pool.nested)
    if pool.size is not None and pool.nested and pool.size < need:
        raise refused(
            config,
            f"pools.{pool.name}.size",
            str(pool.size),
            f"{lanes} lanes could each hold one connection and wait for {pool.nested} more, with none left to free",
            f"at least {need}, which is {lanes} lanes x (1 + nested), or no size at all",
        )


def _consumers(config: FleetConfig) -> None:
    queues: dict[str, str] = {}
    key_names: dict[str, str] = {}
    for consumer in config.consumers.values():
        path = f"consumers.{consumer.name}"
        if consumer.queue.startswith("amq."):
            problem = "names that start with amq. belong to the broker"
            raise refused(config, f"{path}.queue", f'"{consumer.queue}"', problem, "any other name")
        other = queues.setdefault(consumer.queue, consumer.name)
        if other != consumer.name:
            raise refused(
                config,
                f"{path}.queue",
                f'"{consumer.queue}"',
                f"consumer {other} consumes this queue, and each message would reach only one of the two",
                "a queue of its own for each consumer, bound to the same exchange",
            )
        other = key_names.setdefault(consumer.key_name, consumer.name)
        if other != consumer.name:
            raise refused(
                config,
                f"{path}.key_name",
                f'"{consumer.key_name}"',
                f"consumer {other} makes its message keys with it, so each would take the other's messages for done",
                "a name that no other consumer has or had",
            )
        if "x-queue-type" in consumer.queue_arguments:
            problem = "the type of a queue has a key of its own"
            raise refused(config, f"{path}.queue_arguments.x-queue-type", None, problem, f"{path}.queue_type")
        check_faults(config, consumer)
        if consumer.contention_step_s <= 0:
            problem = "a copy that waits for another copy would come back at once, and spin"
            allowed = 'a duration of at least 100ms, such as "1s"'
            raise refused(config, f"{path}.contention_step", '"0s"', problem, allowed)


def _exchanges(config: FleetConfig) -> None:
    kinds: dict[str, str] = {}
    for consumer in config.consumers.values():
        for at, binding in enumerate(consumer.bindings):
            key = f"consumers.{consumer.name}.bindings[{at}]"
            if binding.exchange_type is None:
                continue
            if binding.exchange.startswith("amq."):
                problem = "exchanges whose names start with amq. are the broker's own, and there already"
                raise refused(config, f"{key}.exchange_type", None, problem, "no exchange_type for them")
            kind = kinds.setdefault(binding.exchange, binding.exchange_type)
            if kind != binding.exchange_type:
                problem = f'another binding declares exchange {binding.exchange} as "{kind}"'
                raise refused(
                    config, f"{key}.exchange_type", f'"{binding.exchange_type}"', problem, f'"{kind}", or none'
                )


def _patience(config: FleetConfig) -> None:
    for consumer in config.consumers.values():
        path = f"consumers.{consumer.name}"
        check_handler_timeout(config, consumer, consumer.handler_timeout_s, f"{path}.handler_timeout")
        check_pacing(config, consumer.pacing_s, f"{path}.pacing")
        check_memory(
            config, (*consumer.pacing_s, consumer.contention_step_s), consumer.handler_timeout_s, f"{path}.pacing"
        )
        for name, chosen in consumer.types.items():
            if chosen.handler_timeout_s is not None:
                key = f'{path}.types."{name}".handler_timeout'
                check_handler_timeout(config, consumer, chosen.handler_timeout_s, key)
            if chosen.pacing_s is not None:
                key = f'{path}.types."{name}".pacing'
                check_pacing(config, chosen.pacing_s, key)
                check_memory(config, chosen.pacing_s, chosen.handler_timeout_s or consumer.handler_timeout_s, key)
        types = consumer.types.values()
        steps_s = [*consumer.pacing_s, consumer.contention_step_s, *(s for kind in types for s in kind.pacing_s or ())]
        timeouts_s = [consumer.handler_timeout_s, *(kind.handler_timeout_s or 0.0 for kind in types)]
        check_sweep(config, consumer, max(steps_s, default=0.0), max(timeouts_s))


LAST_S = 7.0
"""What a stop takes beside its configured steps, at most, each with a bound of its own: the consumers' connections end
(all at once), then the publisher's, at a broker that does not answer; the HTTP door ends; and what closes when nothing
is left of `close_timeout` gets a moment all the same. A test adds the bounds up."""


def _process(config: FleetConfig) -> None:
    drain, breaker, members = config.drain, config.breaker, config.members
    steps_s = drain.cancel_timeout_s + drain.deadline_s + drain.settle_timeout_s + drain.close_timeout_s + LAST_S
    if steps_s >= drain.grace_period_s:
        raise refused(
            config,
            "drain.grace_period",
            quoted(drain.grace_period_s),
            f"the steps of a stop may take {written(steps_s)}, and the process would be killed before it is done",
            f"more than cancel_timeout + deadline + settle_timeout + close_timeout + {written(LAST_S)}",
        )
    if breaker.first_wait_s > breaker.longest_wait_s:
        raise refused(
            config,
            "breaker.first_wait",
            quoted(breaker.first_wait_s),
            "the first wait is longer than the longest",
            f"at most breaker.longest_wait ({written(breaker.longest_wait_s)})",
        )
    if members.expiry_s <= 3 * members.heartbeat_s:
        raise refused(
            config,
            "members.expiry",
            quoted(members.expiry_s),
            "a living process would count as dead after three late heartbeats",
            f"more than three times members.heartbeat ({written(members.heartbeat_s)})",
        )


_RULES: tuple[Callable[[FleetConfig], None], ...] = (
    _service,
    _urls,
    _broker,
    _pools,
    _consumers,
    _exchanges,
    _patience,
    _process,
)
