"""Errors of the consumers, grouped by what a caller can do about them.

ConsumerError
├── ConfigError          change the value in the file
├── RegistrationError    change the decorated function
├── ConsumerNotFound     change `handler` in the file, or the module it names
├── ResourceMissing      provide the class by a lifespan
├── LifespanFailed       what a lifespan opens or closes is out of order
└── UnexpectedAnswer     a handler returned what it should have raised or awaited
"""

from __future__ import annotations


class ConsumerError(Exception):
    """Root of everything that the consumers raise."""


class ConfigError(ConsumerError):
    """A configuration value that cannot be worked with.

    :param file: the file it stands in.
    :param key: its dotted TOML path; empty if the file as a whole is meant.
    :param value: as it may be shown; None if there is none, or it may not be shown.
    :param problem: what is wrong with it.
    :param allowed: what may stand there.
    """

    def __init__(self, *, file: str, key: str, value: str | None, problem: str, allowed: str) -> None:
        self.file, self.key, self.value, self.problem, self.allowed = file, key, value, problem, allowed
        where = f"{file}: {key}" if key else file
        shown = "" if value is None else f" = {value}"
        super().__init__(f"{where}{shown}: {problem}; allowed: {allowed}")


class RegistrationError(ConsumerError):
    """A function was registered that cannot be a handler or a lifespan.

    :param subject: "module:qualname" of the function.
    :param where: its file and line.
    """

    def __init__(self, *, consumer: str, subject: str, where: str, problem: str, allowed: str) -> None:
        self.consumer, self.subject, self.where, self.problem, self.allowed = consumer, subject, where, problem, allowed
        place = f" ({where})" if where else ""
        super().__init__(f"consumer {consumer}: {subject}{place}: {problem}; allowed: {allowed}")


class ConsumerNotFound(ConsumerError):
    """The configured reference does not lead to the consumer."""

    def __init__(self, *, reference: str, problem: str) -> None:
        self.reference, self.problem = reference, problem
        super().__init__(f"{reference}: {problem}")


class ResourceMissing(ConsumerError):
    """A handler asks for a resource that cannot be chosen."""

    def __init__(self, *, consumer: str, wanted_by: str, problem: str) -> None:
        self.consumer, self.wanted_by, self.problem = consumer, wanted_by, problem
        super().__init__(f"consumer {consumer}: {wanted_by}: {problem}")


class LifespanFailed(ConsumerError):
    """A lifespan could not open or close its resources.

    :param step: "open" or "close".
    """

    def __init__(self, *, consumer: str, lifespan: str, where: str, step: str, problem: str) -> None:
        self.consumer, self.lifespan, self.where, self.step, self.problem = consumer, lifespan, where, step, problem
        super().__init__(f"consumer {consumer}: lifespan {lifespan} ({where}) did not {step}: {problem}")


class UnexpectedAnswer(ConsumerError):
    """A handler's answer shows that its work is not done, so the attempt fails."""

    def __init__(self, *, handler: str, problem: str, advice: str) -> None:
        self.handler, self.problem, self.advice = handler, problem, advice
        super().__init__(f"handler {handler}: {problem}: {advice}")
