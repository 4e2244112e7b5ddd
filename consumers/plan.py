"""What a configuration and the handlers it names come to together: policies, parking steps, queues and pools.

The composition root and the commands build on the same plan, so what `topology apply` declares and `check` verifies is
what `run` uses. Making a plan imports the handlers' modules; it touches neither broker nor database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.config.checks import (
    check_handler_timeout,
    check_memory,
    check_pacing,
    check_parking,
    check_sweep,
    dead_letter_queue,
    parking_queue,
    refused,
)
from consumers.config.fleet import FleetConfig
from consumers.config.settings import ConsumerSettings, TypeSettings
from consumers.errors import ConfigError, ConsumerNotFound
from consumers.handlers import Handler
from consumers.overrides import overrides
from consumers.registry import CATCH_ALL, Consumer, load_consumer
from inbox import Overrides, Policy
from pools import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """One consumer: its settings, its handlers, and the policy of each type.

    :param policies: by message type, for types that have settings or a handler of their own, and "*".
    :param exhaustion_policy: for the delivery of exhaustion records: the consumer's own, whatever types have.
    :param unseen: parameters of handlers of which only a start can tell whether something provides them.
    """

    settings: ConsumerSettings
    consumer: Consumer
    policies: Mapping[str, Policy]
    exhaustion_policy: Policy
    unseen: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self.settings.name

    def policy_for(self, message_type: str) -> Policy:
        """Return the policy of a message type; the consumer's own for types without anything of their own."""
        return self.policies.get(message_type) or self.policies[CATCH_ALL]

    @property
    def parking_steps_s(self) -> tuple[float, ...]:
        """The different steps above zero, shortest first, the contention step among them: one parking queue each."""
        steps = {step for policy in self.policies.values() for step in policy.pacing_s if step > 0}
        return tuple(sorted(steps | {float(self.settings.contention_step_s)}))

    @property
    def longest_handler_timeout_s(self) -> float:
        """The longest time that an attempt of this consumer may take."""
        return max(policy.handler_timeout_s for policy in self.policies.values())

    @property
    def longest_hold_s(self) -> float:
        """The longest time that any handler of this consumer may hold a connection."""
        if self.consumer.exhausted_handler is None:
            return self.longest_handler_timeout_s
        return max(self.longest_handler_timeout_s, self.exhaustion_policy.handler_timeout_s)

    @property
    def holders(self) -> int:
        """How many workers may hold a connection at once: the lanes, and the delivery of exhaustion records."""
        return self.settings.lanes + (self.consumer.exhausted_handler is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """A whole fleet, ready to be declared, checked or run."""

    config: FleetConfig
    consumers: Mapping[str, ConsumerPlan]


def plan(config: FleetConfig) -> FleetPlan:
    """Import the handlers of a configuration and work out what follows from both.

    :raises ConfigError: a handler reference does not lead to its consumer, or settings do not fit the handlers.
    :raises RegistrationError: an imported module registers a function that cannot be a handler.
    :raises ResourceMissing: a handler needs what, by their annotations, no lifespan provides.
    """
    consumers = {name: _consumer_plan(config, settings) for name, settings in config.consumers.items()}
    _check_queues(config, consumers)
    return FleetPlan(config=config, consumers=consumers)


def _consumer_plan(config: FleetConfig, settings: ConsumerSettings) -> ConsumerPlan:
    path = f"consumers.{settings.name}"
    try:
        consumer = load_consumer(settings.handler, name=settings.name)
    except ConsumerNotFound as error:
        raise ConfigError(
            file=config.file,
            key=f"{path}.handler",
            value=f'"{settings.handler}"',
            problem=error.problem,
            allowed=f'"module:attribute" of a Consumer("{settings.name}") with handlers',
        ) from error.__cause__
    for message_type in settings.types:
        if consumer.handler_for(message_type) is None:
            handled = ", ".join(sorted(consumer.handlers))
            key = f'{path}.types."{message_type}"'
            raise refused(config, key, None, "no handler is registered for this type", f"a handled type: {handled}")
    faults = overrides(config, settings)
    policies = {CATCH_ALL: _policy(settings, _types(settings, CATCH_ALL), consumer.handlers.get(CATCH_ALL), faults)}
    for message_type in {*consumer.handlers, *settings.types}:
        chosen = _types(settings, message_type)
        policies[message_type] = _policy(settings, chosen, consumer.handler_for(message_type), faults)
    for handler in consumer.handlers.values():
        _check_decorator(config, settings, handler)
    planned = ConsumerPlan(
        settings=settings,
        consumer=consumer,
        policies=policies,
        exhaustion_policy=_policy(settings, TypeSettings(), None, faults),
        unseen=consumer.check_resources(Pool),
    )
    check_parking(config, settings, planned.parking_steps_s)
    check_sweep(config, settings, planned.parking_steps_s[-1], planned.longest_handler_timeout_s)
    return planned


def _types(settings: ConsumerSettings, message_type: str) -> TypeSettings:
    return settings.types.get(message_type, TypeSettings())


def _policy(settings: ConsumerSettings, chosen: TypeSettings, handler: Handler | None, faults: Overrides) -> Policy:
    """The file's table for the type wins over the decorator, which wins over the consumer's table."""
    max_attempts = chosen.max_attempts or (handler and handler.max_attempts) or settings.max_attempts
    timeout_s = chosen.handler_timeout_s or (handler and handler.timeout_s) or settings.handler_timeout_s
    pacing_s = chosen.pacing_s or (handler and handler.pacing_s) or settings.pacing_s
    return Policy(
        max_attempts=max_attempts,
        max_aborts=settings.max_aborts,
        pacing_s=tuple(float(step) for step in pacing_s),
        handler_timeout_s=float(timeout_s),
        faults=faults,
    )


def _check_decorator(config: FleetConfig, settings: ConsumerSettings, handler: Handler) -> None:
    of = f"of the decorator of {handler.name} ({handler.where})"
    if handler.timeout_s is not None:
        check_handler_timeout(config, settings, handler.timeout_s, f"timeout {of}")
    if handler.pacing_s is not None:
        check_pacing(config, handler.pacing_s, f"pacing {of}")
    check_memory(
        config, handler.pacing_s or settings.pacing_s, handler.timeout_s or settings.handler_timeout_s, f"pacing {of}"
    )


def _check_queues(config: FleetConfig, consumers: Mapping[str, ConsumerPlan]) -> None:
    taken = {
        parking_queue(planned.settings.queue, step): f"consumer {planned.name} parks messages in it"
        for planned in consumers.values()
        for step in planned.parking_steps_s
    }
    for planned in consumers.values():
        if planned.settings.dead_letters:
            taken[dead_letter_queue(planned.settings.queue)] = f"consumer {planned.name} puts its dead letters there"
    for planned in consumers.values():
        queue = planned.settings.queue
        if queue in taken:
            allowed = "a queue that is for this consumer's work alone"
            raise refused(config, f"consumers.{planned.name}.queue", f'"{queue}"', taken[queue], allowed)
