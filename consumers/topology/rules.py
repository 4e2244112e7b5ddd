"""Queue arguments that would lose messages, refused before anything is declared.

The inbox alone decides when a message is over. A queue that drops messages, lets them expire, counts their deliveries
too low, or sends them in a circle that the broker cuts, decides it too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pamqp.constants import DOMAIN_REGEX

from consumers.errors import TopologyRefused

NAME = "name"
BINDING = "binding to exchange"
DELIVERY_LIMIT = "x-delivery-limit"
DELIVERIES_PER_ATTEMPT = 10
"""A delivery limit counts what the inbox does not: look-ahead given back by each stop, each lost line. So it has to be
far above the number of attempts."""

_MAX_NAME_BYTES = 255
_MAX_EXCHANGE_NAME = 127
_NAME_FORM = "letters, digits, blanks and - _ . : @ # , / +"
_LENGTH_LIMITS = ("x-max-length", "x-max-length-bytes")
_KEEPS_WHAT_IT_HAS = ("reject-publish", "reject-publish-dlx")


def check_names(queues: Collection[str], exchanges: Collection[str]) -> None:
    """Check that the client can say these names, and bind to these exchanges.

    :raises TopologyRefused: it cannot.
    """
    for name in queues:
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise _refused(name, NAME, name, "it is too long", f"at most {_MAX_NAME_BYTES} bytes")
        if not DOMAIN_REGEX["queue-name"].fullmatch(name):
            raise _refused(name, NAME, name, "the AMQP client does not take it", _NAME_FORM)
    for name in exchanges:
        if not name:
            problem = "every queue is bound to the default exchange by its own name, and to no other"
            raise _refused(next(iter(queues)), BINDING, name, problem, "a named exchange")
        if len(name) > _MAX_EXCHANGE_NAME or not DOMAIN_REGEX["exchange-name"].fullmatch(name):
            allowed = f"at most {_MAX_EXCHANGE_NAME} of {_NAME_FORM}"
            raise _refused(next(iter(queues)), BINDING, name, "the AMQP client does not take it", allowed)


def check_work_queue(
    queue: str,
    queue_type: str,
    arguments: Mapping[str, object],
    *,
    parking: Collection[str],
    exchanges: Collection[str],
    redeliveries: int,
) -> None:
    """Check the arguments of a work queue.

    :param parking: names of its parking queues.
    :param exchanges: names of the exchanges it is bound to.
    :param redeliveries: how many attempts a message may need, charged or not.
    :raises TopologyRefused: with these arguments messages would be lost.
    """
    _check_delivery_limit(queue, queue_type, arguments, redeliveries)
    _check_dead_lettering(queue, arguments, parking, exchanges)
    if "x-expires" in arguments:
        problem = "the broker would delete the queue and all messages while the fleet is stopped"
        raise _refused(queue, "x-expires", arguments["x-expires"], problem, "no such argument")
    has_route = "x-dead-letter-exchange" in arguments
    if "x-message-ttl" in arguments and not has_route:
        problem = "messages would vanish before they are processed"
        allowed = "no such argument, or x-dead-letter-exchange besides it"
        raise _refused(queue, "x-message-ttl", arguments["x-message-ttl"], problem, allowed)
    for limit in _LENGTH_LIMITS:
        if limit in arguments and not has_route and arguments.get("x-overflow") not in _KEEPS_WHAT_IT_HAS:
            problem = "a full queue would drop its oldest messages, unprocessed"
            raise _refused(queue, limit, arguments[limit], problem, 'x-overflow = "reject-publish" besides it')


def _check_delivery_limit(queue: str, queue_type: str, arguments: Mapping[str, object], redeliveries: int) -> None:
    if DELIVERY_LIMIT not in arguments:
        return
    limit = arguments[DELIVERY_LIMIT]
    needed = DELIVERIES_PER_ATTEMPT * redeliveries
    if queue_type != "quorum":
        raise _refused(queue, DELIVERY_LIMIT, limit, "only quorum queues have one", "no such argument")
    if isinstance(limit, bool) or not isinstance(limit, int) or (limit != -1 and limit < needed):
        problem = f"a message may need {redeliveries} attempts, and the broker would remove it before they are used up"
        raise _refused(queue, DELIVERY_LIMIT, limit, problem, f"at least {needed}, or no such argument")


def _check_dead_lettering(
    queue: str, arguments: Mapping[str, object], parking: Collection[str], exchanges: Collection[str]
) -> None:
    exchange = arguments.get("x-dead-letter-exchange")
    if exchange is None:
        return
    key = arguments.get("x-dead-letter-routing-key")
    cycle = "a message would come back to this queue without being rejected, and the broker drops such cycles"
    if exchange == "" and (key is None or key == queue or key in parking):
        allowed = "a route that leads neither into this queue nor into its parking queues"
        raise _refused(queue, "x-dead-letter-routing-key", key, cycle, allowed)
    if exchange in exchanges:
        raise _refused(queue, "x-dead-letter-exchange", exchange, cycle, "an exchange that it is not bound to")


def _refused(queue: str, argument: str, value: object, problem: str, allowed: str) -> TopologyRefused:
    return TopologyRefused(queue=queue, argument=argument, value=value, problem=problem, allowed=allowed)
