"""Errors of the consumers, grouped by what a caller can do about them.

ConsumerError
├── BrokerUnavailable    wait and try again; the hint says what an operator looks at
├── DatabaseUnavailable  the same
├── ChannelLost          the same, when the connection may well be alive
├── TopologyRefused      change the queue's arguments or names: with these, messages would be lost
├── TopologyMismatch     apply the topology, or delete the queue that differs
├── PublishError         the message is not known to be in a queue
│   ├── PublishReturned  bind a queue, then publish again
│   ├── PublishRefused   the broker said no; its reason says why
│   └── PublishUnconfirmed  nobody knows: publish again with the same message id
├── SettledTwice         a bug: one delivery, two settlements
├── ConfigError          change the value in the file
├── UrlRefused           change the URL, where it comes from
├── RegistrationError    change the decorated function
├── ConsumerNotFound     change `handler` in the file, or the module it names
├── ResourceMissing      provide the class by a lifespan
├── LifespanFailed       what a lifespan opens or closes is out of order
├── UnexpectedAnswer     a handler returned what it should have raised or awaited
├── MalformedProperties  a property list breaks the encoding: record the message as it is, change nothing in it
├── HeadersTooLarge      a property list does not fit into one frame: publish less of it
└── ClientUnsupported    install the client version that this build was made for
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


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


class UrlRefused(ConsumerError):
    """A URL that leads somewhere, with a parameter that cannot be worked with.

    :param origin: where the URL comes from, never the URL.
    """

    def __init__(self, *, origin: str, problem: str, hint: str) -> None:
        self.origin, self.problem, self.hint = origin, problem, hint
        super().__init__(f"the URL from {origin} is refused: {problem}; {hint}")


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


class BrokerUnavailable(ConsumerError):
    """The broker cannot be reached, or ended the connection.

    :param broker: host and port, never the URL.
    :param action: what was tried: "connect".
    :param problem: what happened.
    :param hint: what to look at.
    """

    def __init__(self, *, broker: str, action: str, problem: str, hint: str) -> None:
        self.broker, self.action, self.problem, self.hint = broker, action, problem, hint
        super().__init__(f"broker {broker}: cannot {action}: {problem}; {hint}")


class ChannelLost(ConsumerError):
    """A channel ended, or did not answer in time, while it was used. What was sent on it may not have arrived.

    :param code: the broker's reply code, such as 404; None if it gave none.
    """

    def __init__(self, *, broker: str, action: str, problem: str, code: int | None = None) -> None:
        self.broker, self.action, self.problem, self.code = broker, action, problem, code
        super().__init__(f"broker {broker}: cannot {action}: {problem}")


class TopologyRefused(ConsumerError):
    """A queue would be declared in a way that loses messages.

    :param argument: the queue argument, or "name".
    """

    def __init__(self, *, queue: str, argument: str, value: object, problem: str, allowed: str) -> None:
        self.queue, self.argument, self.value, self.problem, self.allowed = queue, argument, value, problem, allowed
        super().__init__(f"queue {queue}: {argument} = {value!r}: {problem}; allowed: {allowed}")


class TopologyMismatch(ConsumerError):
    """What the broker has is not what the consumers need.

    :param differences: one sentence for each queue or exchange that is missing or differs.
    :param missing: names of the queues that are not there.
    """

    def __init__(self, *, differences: Sequence[str], missing: Collection[str] = ()) -> None:
        self.differences, self.missing = tuple(differences), frozenset(missing)
        super().__init__("the broker's topology is not the configured one: " + "; ".join(self.differences))


class PublishError(ConsumerError):
    """A publish that is not proven to have reached a queue."""

    def __init__(self, *, exchange: str, routing_key: str, message_id: str, problem: str) -> None:
        self.exchange, self.routing_key, self.message_id, self.problem = exchange, routing_key, message_id, problem
        where = f"exchange {exchange!r}" if exchange else "the default exchange"
        super().__init__(f"message {message_id} to {where} with routing key {routing_key!r}: {problem}")


class PublishReturned(PublishError):
    """No queue is bound for it: the broker gave the message back."""


class PublishRefused(PublishError):
    """The broker refused the message: a full queue, no such exchange, no permission, a property it does not take.

    :param by_queue: its queue takes nothing now, so any other message would fare no better.
    """

    def __init__(self, *, exchange: str, routing_key: str, message_id: str, problem: str, by_queue: bool) -> None:
        self.by_queue = by_queue
        super().__init__(exchange=exchange, routing_key=routing_key, message_id=message_id, problem=problem)


class PublishUnconfirmed(PublishError):
    """Whether the message arrived is unknown.

    :param sent: False if it certainly never left this process.
    """

    def __init__(self, *, exchange: str, routing_key: str, message_id: str, problem: str, sent: bool) -> None:
        self.sent = sent
        fate = "it may have arrived" if sent else "it was not sent"
        super().__init__(
            exchange=exchange, routing_key=routing_key, message_id=message_id, problem=f"{problem}; {fate}"
        )


class SettledTwice(ConsumerError):
    """A delivery was to be settled a second time."""

    def __init__(self, *, queue: str, tag: int, verb: str, settled: str) -> None:
        self.queue, self.tag, self.verb, self.settled = queue, tag, verb, settled
        super().__init__(f"delivery {tag} of queue {queue} cannot be settled by {verb}: {settled} was called before")


class DatabaseUnavailable(ConsumerError):
    """PostgreSQL cannot be reached, or does not let us in.

    :param database: hosts and ports, never the URL.
    :param problem: what happened.
    :param hint: what to look at.
    """

    def __init__(self, *, database: str, problem: str, hint: str) -> None:
        self.database, self.problem, self.hint = database, problem, hint
        super().__init__(f"database {database}: {problem}; {hint}")


class MalformedProperties(ConsumerError):
    """A property list that breaks the encoding, so that nothing behind the break can be read.

    :param at: offset of the broken field in the list, in bytes.
    """

    def __init__(self, *, problem: str, at: int) -> None:
        self.problem, self.at = problem, at
        super().__init__(f"the property list is malformed at byte {at}: {problem}")


class HeadersTooLarge(ConsumerError):
    """A header frame that the broker would answer by closing the connection; nothing was sent.

    :param size: payload of the header frame, in bytes.
    :param limit: what the negotiated frame size leaves for it, in bytes.
    """

    def __init__(self, *, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"the headers take {size} bytes and one frame holds {limit}: the message cannot be published with them"
        )


class ClientUnsupported(ConsumerError):
    """The installed AMQP client does not decode frames the way that this build stands on."""

    def __init__(self, *, version: str, problem: str) -> None:
        self.version, self.problem = version, problem
        super().__init__(f"pamqp {version} is not supported: {problem}; install the version that inbox-fleet asks for")
