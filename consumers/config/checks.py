"""Checks of timeouts, pacing and parking: they run when the file is read, and again when the handlers are known.

A decorator may set what the file sets, and both have to fit the process and the broker.
"""

from __future__ import annotations

import re

from consumers.config.fleet import FleetConfig
from consumers.config.settings import ConsumerSettings
from consumers.errors import ConfigError
from inbox.durations import text as written
from inbox.faults import is_of_lost_session

MAX_STEPS = 16
FAULT_KEYS = (
    'a SQLSTATE such as "P0001", a class of them such as "23", or the full name of an exception type between quotes, '
    'such as "httpx.ConnectError"'
)
OF_LOST_SESSION = "it cannot be overridden: whoever meets it has lost its session, and is not charged for that"
_SQLSTATE = re.compile(r"[0-9A-Z]{5}|[0-9A-Z]{2}")
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
MAX_QUEUE_NAME_BYTES = 255
MIN_MEMORY_S = 3600.0
BROKER_RETRY_S = 180.0
"""After which RabbitMQ tries again to bring back what its target has refused."""


def check_handler_timeout(config: FleetConfig, consumer: ConsumerSettings, timeout_s: float, key: str) -> None:
    """Check that an attempt of this length fits the drain and the broker's patience.

    :param key: where the timeout was set, for the message.
    :raises ConfigError: it does not.
    """
    deadline_s, limit_s, hold_s = config.drain.deadline_s, config.broker.consumer_timeout_s, config.breaker.hold_s
    held_s = consumer.held_s(timeout_s)
    if timeout_s >= deadline_s:
        raise refused(
            config,
            key,
            quoted(timeout_s),
            "a handler may run longer than a stopping process waits for it: each rollout would throw its work away",
            f"less than drain.deadline ({written(deadline_s)}); where handlers are slow, raise that and grace_period",
        )
    if held_s >= limit_s:
        raise refused(
            config,
            key,
            quoted(timeout_s),
            f"with lanes = {consumer.lanes} and look_ahead = {consumer.look_ahead} a delivery may stay unacknowledged "
            f"for {written(held_s)}, and the broker would close the channel",
            f"(look_ahead / lanes + 1) x handler_timeout below broker.consumer_timeout ({written(limit_s)})",
        )
    if held_s + hold_s >= limit_s:
        raise refused(
            config,
            "breaker.hold",
            quoted(hold_s),
            f"a delivery of consumer {consumer.name} may stay unacknowledged for {written(held_s)} besides",
            f"both together below broker.consumer_timeout ({written(limit_s)})",
        )


def check_pacing(config: FleetConfig, pacing_s: tuple[float, ...], key: str) -> None:
    """Check the number of steps of one pacing.

    :param key: where it was set, for the message.
    :raises ConfigError: it is empty or too long.
    """
    if not 1 <= len(pacing_s) <= MAX_STEPS:
        raise refused(
            config,
            key,
            None,
            f"it has {len(pacing_s)} steps",
            f'1 to {MAX_STEPS} steps, the delays before attempt 2, 3, …, such as ["0s", "5s", "30s", "5m"]',
        )


def check_memory(config: FleetConfig, pacing_s: tuple[float, ...], timeout_s: float, key: str) -> None:
    """Check that what has ended is remembered for longer than a copy of it can be on its way.

    A copy that waits comes back after one step at the latest, whatever it waits for, or when the broker has tried again
    to bring it back; an attempt may be holding it then. All of it counts twice, for what waits before it in the queue.

    :param timeout_s: of the handler.
    :param key: where the pacing was set, for the message.
    :raises ConfigError: a copy could come after its message was forgotten, and would have its effect again.
    """
    longest_s = max(pacing_s, default=0.0)
    needed_s = max(MIN_MEMORY_S, 2 * least_slack_s(longest_s, timeout_s))
    for name, kept_s in (
        ("receipts.retention", config.receipts.retention_s),
        ("retention.terminal", config.retention.terminal_s),
    ):
        if kept_s < needed_s:
            raise refused(
                config,
                name,
                quoted(kept_s),
                f"a copy of a message could come after that and have its effect again: {key} has a step of "
                f"{written(longest_s)}, a handler may take {written(timeout_s)}, and the broker may take "
                f"{written(BROKER_RETRY_S)} to try again",
                f"at least {written(needed_s)}, which is twice all of that and an hour at least; days are usual",
            )


def least_slack_s(longest_step_s: float, timeout_s: float) -> float:
    """Return how late a copy of a message may be, in seconds, if nothing but the way of things holds it up."""
    return longest_step_s + BROKER_RETRY_S + timeout_s


def check_sweep(config: FleetConfig, consumer: ConsumerSettings, longest_step_s: float, timeout_s: float) -> None:
    """Check that a message is not given another copy while its own may still come.

    :param longest_step_s: of all pacings of the consumer, the contention step included.
    :param timeout_s: the longest of its handlers'.
    :raises ConfigError: it would be.
    """
    sweep, least_s = config.sweep, least_slack_s(longest_step_s, timeout_s)
    if sweep.slack_s is not None and sweep.slack_s < least_s:
        raise refused(
            config,
            "sweep.slack",
            quoted(sweep.slack_s),
            f"a copy of consumer {consumer.name} can be later than that by itself: the longest step is "
            f"{written(longest_step_s)}, a handler may take {written(timeout_s)}, and the broker may take "
            f"{written(BROKER_RETRY_S)} to try again",
            f"at least {written(least_s)}, which is all of that together; without it each consumer has its own",
        )
    slack_s = sweep.slack_s or least_s
    if sweep.at_latest_s is not None and sweep.at_latest_s < slack_s:
        raise refused(
            config,
            "sweep.at_latest",
            quoted(sweep.at_latest_s),
            f"messages of consumer {consumer.name} are left alone for {written(slack_s)} whatever is seen",
            f"at least {written(slack_s)}; hours or a day are usual",
        )


def check_parking(config: FleetConfig, consumer: ConsumerSettings, steps_s: tuple[float, ...]) -> None:
    """Check the parking queues that all pacings of a consumer need together.

    :param steps_s: the different steps above zero, the contention step included.
    :raises ConfigError: they are too many, or their names too long.
    """
    if len(steps_s) > MAX_STEPS:
        raise refused(
            config,
            f"consumers.{consumer.name}.pacing",
            None,
            f"with contention_step and all types it needs {len(steps_s)} parking queues, one for each different step",
            f"at most {MAX_STEPS} different steps: let types share steps",
        )
    longest = max((len(parking_queue(consumer.queue, step).encode()) for step in steps_s), default=0)
    if longest > MAX_QUEUE_NAME_BYTES:
        raise refused(
            config,
            f"consumers.{consumer.name}.queue",
            None,
            f"the names of its parking queues would have up to {longest} bytes",
            f"a name so short that NAME.park.STEP has at most {MAX_QUEUE_NAME_BYTES} bytes",
        )


def check_faults(config: FleetConfig, consumer: ConsumerSettings) -> None:
    """Check what a consumer's table of faults speaks of, as far as that can be told without importing anything.

    :raises ConfigError: a key is neither a SQLSTATE nor a name, or one that no choice can change.
    """
    for name, action in consumer.faults.items():
        key = f'consumers.{consumer.name}.faults."{name}"'
        if not is_sqlstate(name) and not _DOTTED_NAME.fullmatch(name):
            raise refused(config, key, f'"{action}"', "it names no error", FAULT_KEYS)
        if is_of_lost_session(name):
            raise refused(config, key, f'"{action}"', OF_LOST_SESSION, "no choice for this one")


def is_sqlstate(key: str) -> bool:
    """Return whether a key of a table of faults is a SQLSTATE, or the class of some."""
    return _SQLSTATE.fullmatch(key) is not None


def parking_queue(queue: str, step_s: float) -> str:
    """Return the name of a work queue's parking queue for one step."""
    return f"{queue}.park.{written(step_s)}"


def dead_letter_queue(queue: str) -> str:
    """Return the name of the queue for copies of a work queue's terminal messages, shorter than any parking queue's."""
    return f"{queue}.dead"


def application_name(config: FleetConfig, pool: str) -> str:
    """Return the application_name under which a pool's sessions are seen in pg_stat_activity."""
    return f"{config.service.name}-{pool}"


def refused(config: FleetConfig, key: str, value: str | None, problem: str, allowed: str) -> ConfigError:
    """Return the error for a value of this configuration."""
    return ConfigError(file=config.file, key=key, value=value, problem=problem, allowed=allowed)


def quoted(value_s: float) -> str:
    """Return a duration as it stands in the file."""
    return f'"{written(value_s)}"'
