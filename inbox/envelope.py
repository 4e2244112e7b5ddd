"""The message as it was received, its key, and the envelope that a handler gets.

A `Message` is what the inbox stores of a message: its identity and its exact bytes, whatever the wire was. Bodies and
property lists are never decoded and encoded again: a replayed message is byte for byte the one that came. An
`Envelope` is a message read for a handler; an `ExhaustionRecord` says of one that it is exhausted.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from inbox.outcomes import Reject
from inbox.safe_text import MAX_NAME_TEXT, safe

T = TypeVar("T")

MAX_ID_BYTES = 255


def message_key(consumer: str, source: str, message_id: str) -> UUID:
    """Return the 16-byte key of a message: one consumer's memory of one message id from one source.

    The three parts are framed by their lengths before they are hashed, so that no two triples share a preimage. Names
    of queues, hosts and processes are not part of it: a message keeps its key wherever it is delivered.
    """
    return _hashed(b"message", consumer.encode(), source.encode(), message_id.encode())


def unidentified_key(consumer: str, properties: bytes, body: bytes) -> UUID:
    """Return the key of a message without a usable id: derived from its bytes, so two bodies are never folded."""
    return _hashed(b"unidentified", consumer.encode(), properties, body)


def _hashed(*parts: bytes) -> UUID:
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return UUID(bytes=digest.digest()[:16])


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message's identity and its bytes.

    :param consumer: the consumer's stable name (`key_name` if it was renamed).
    :param source: CloudEvents `source`, else app_id, else the exchange it was first published to.
    :param message_id: empty if the message had none that could be used.
    :param type: empty if the message named none.
    :param body: as received.
    :param properties: the AMQP property list as received, undecoded.
    """

    key: UUID
    consumer: str
    source: str
    message_id: str
    type: str
    body: bytes = field(repr=False)
    properties: bytes = field(repr=False)
    exchange: str
    routing_key: str
    traceparent: str | None = None

    def stored(self) -> tuple[object, ...]:
        """Return what goes on record beside the key, as statements take it: texts made safe, bytes as they are."""
        return (
            self.consumer,
            safe(self.source, MAX_NAME_TEXT * 4),
            safe(self.message_id, MAX_NAME_TEXT),
            safe(self.type, MAX_NAME_TEXT),
            self.body,
            self.properties,
            safe(self.exchange, MAX_NAME_TEXT),
            safe(self.routing_key, MAX_NAME_TEXT),
            None if self.traceparent is None else safe(self.traceparent, MAX_NAME_TEXT),
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which try of a message this is.

    :param number: 1 for the first attempt of the generation.
    :param generation: 1, and one more with each replay.
    :param claim_id: unique for this attempt; it fences every write about it.
    """

    number: int
    generation: int
    claim_id: UUID


_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a handler gets: one message, read, and the attempt that it belongs to.

    :param data: the payload in bytes: the body, or the `data` of a structured CloudEvent.
    :param headers: the sender's headers, read-only; the fleet's own headers are not among them.
    :param exchange: where the message was first published to, also when this copy came from a parking queue.
    :param redelivered: an earlier delivery may have started; never a duplicate test.
    :param attributes: of a CloudEvent, extensions included, by their names without prefix; empty for other messages.
    """

    message: Message
    data: bytes = field(repr=False)
    exchange: str
    routing_key: str
    redelivered: bool
    attempt: Attempt
    headers: Mapping[str, Any] = field(default_factory=lambda: _NO_HEADERS)
    content_type: str | None = None
    subject: str | None = None
    time: datetime | None = None
    correlation_id: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=lambda: _NO_HEADERS)

    @property
    def id(self) -> str:
        """The sender's message id."""
        return self.message.message_id

    @property
    def type(self) -> str:
        """The message's type, by which handlers are chosen."""
        return self.message.type

    @property
    def source(self) -> str:
        """Who says so: part of the message's identity."""
        return self.message.source

    @property
    def consumer(self) -> str:
        """The consumer that this envelope is handed to."""
        return self.message.consumer

    def decode(self, as_type: builtins.type[T]) -> T:
        """Decode the JSON payload into a type.

        :param as_type: a msgspec Struct, dataclass, TypedDict or any type that msgspec decodes.
        :raises Reject: the payload is not JSON, or not of that type. The message becomes `rejected`, its bytes kept.
        """
        try:
            return msgspec.json.decode(self.data, type=as_type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            name = getattr(as_type, "__name__", repr(as_type))
            raise Reject(f"the payload is not a {name}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustionRecord:
    """What an `on_exhausted` handler gets: a message that is exhausted, and why.

    :param id: the record's own, the same in each try: a key that the other side of an effect can tell repeats by.
    :param generation: of the message; one that was replayed and is exhausted again leaves another record.
    :param number: how many attempts the message had in this generation.
    :param claim_id: of the last of them.
    :param reason: "attempts" or "aborts", whichever was used up.
    :param error_class: of the last attempt, as its text; None if it was given up without one.
    :param tries: which try of this record it is, from 1; those that were not charged are left out.
    :param envelope: the message. Of one that cannot be read it has the body and no headers.
    """

    id: UUID
    key: UUID
    generation: int
    number: int
    claim_id: UUID
    consumer: str
    reason: str
    error_class: str | None
    error_text: str | None = field(repr=False)
    exhausted_at: datetime
    tries: int
    envelope: Envelope = field(repr=False)
