"""Messages that are too large to go on record: what is kept of them, and how they end.

A message whose bytes the database must not hold cannot be begun: if its attempt fails, they would have to be on record
before the delivery is acked. So it is rejected instead, and nothing of it is lost on the way: the caller puts the whole
somewhere else, then a row is committed that has the beginning of the body and tells the whole by length and digest, and
then the delivery may be acked. All of that under the message's lock, and with no transaction open while the whole is on
its way. A crash in between leaves no row, so the next copy has it done again.

What is on record already, from a time when more was allowed, runs on: its bytes are there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from typing import Final, TypeAlias

from inbox.claiming import Claim
from inbox.envelope import Message
from inbox.outcomes import Ended, Unkept
from inbox.points import reach
from inbox.queries import query
from inbox.states import Event, State, next_state

KEPT_BYTES: Final = 64 * 2**10
"""How much of its body is on record."""

REASON: Final = "too_large"

_REJECT = query("reject_oversize")


class NotKept(Exception):
    """Nothing is known to have taken the whole message; the text says why."""


Keep: TypeAlias = Callable[[Message], Awaitable[None]]
"""Puts a whole message where it will be found, under the key of its row; returning proves that it is there.

:raises NotKept: that is not known.
"""


def stored_bytes(message: Message) -> int:
    """Return how many bytes a message has on record, names and texts aside."""
    return len(message.body) + len(message.properties)


def beginning(message: Message) -> Message:
    """Return what is kept on record of a message that is too large. Its properties are bounded by a frame."""
    return replace(message, body=message.body[:KEPT_BYTES])


async def put_aside(claim: Claim, whole: Message, keep: Keep) -> Ended | Unkept:
    """Have a message kept elsewhere, then reject it.

    :param claim: holds the key for the session; nothing is on record of the message, and no transaction is open.
    :raises StatementFailed: whether it is rejected is not known.
    """
    try:
        await keep(whole)
    except NotKept as error:
        return Unkept(str(error))
    reach("oversize.confirmed")
    kept, digest = beginning(whole).stored(), sha256(whole.body).digest()
    await claim.fetchrow(_REJECT, whole.key, *kept, len(whole.body), digest)
    reach("oversize.rejected")
    return Ended(next_state(State.NEW, Event.REJECT), 0, REASON)
