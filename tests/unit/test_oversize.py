"""Which messages are too large, and what is published of them before they may be rejected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog.testing

from consumers.config import parse
from consumers.errors import PublishReturned
from consumers.oversize import Oversize
from consumers.properties import PropertyList
from consumers.telemetry import Telemetry
from inbox import Message
from inbox.oversize import KEPT_BYTES, NotKept, beginning, stored_bytes
from tests.support.inboxes import message
from tests.support.property_lists import listing
from tests.unit.test_config import MINIMAL

LIMIT = 300_000
PROPERTIES = listing(message_id=b"m-1", app_id=b"/shop", type=b"order.placed", reply_to=b"answers")
FIELDS = {"properties": PROPERTIES}


class FakePublisher:
    """Notes what is published, or raises an error in its stead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.published: list[dict[str, Any]] = []

    async def publish(self, **letter: Any) -> None:
        """Confirm a publish, or not."""
        if self.error is not None:
            raise self.error
        self.published.append(letter)


def oversize(publisher: FakePublisher, setting: str = "") -> Oversize:
    config = parse(f"{MINIMAL}max_stored_bytes = {LIMIT}\n{setting}\n", file="fleet.toml")
    plan = SimpleNamespace(name="invoices", settings=config.consumers["invoices"])
    return Oversize(
        cast(Any, plan),
        publisher=cast(Any, publisher),
        publish_timeout_s=3.0,
        telemetry=Telemetry.create("tests", "0", schema=1).consumer("invoices", queue="billing.invoices", types=()),
    )


def of_size(number: int) -> Message:
    """Return a message that takes so many bytes on record."""
    made = message(body=b"x" * (number - len(PROPERTIES)), **FIELDS)
    assert stored_bytes(made) == number
    return made


def test_body_and_properties_count_together_and_the_limit_itself_is_allowed() -> None:
    tool = oversize(FakePublisher())
    assert tool.keeper(of_size(LIMIT)) is None
    assert tool.keeper(of_size(LIMIT + 1)) is not None
    assert tool.keeper(message(body=b"", properties=b"x" * LIMIT)) is None


def test_what_is_kept_on_record_is_the_beginning_of_the_body_and_everything_else() -> None:
    large = message(body=bytes(range(256)) * 2_000, **FIELDS)
    kept = beginning(large)
    assert kept.body == large.body[:KEPT_BYTES]
    assert (kept.key, kept.properties, kept.message_id) == (large.key, large.properties, large.message_id)
    assert stored_bytes(kept) < LIMIT


async def test_the_whole_goes_to_the_queue_for_dead_letters_and_names_its_row() -> None:
    publisher, large = FakePublisher(), of_size(LIMIT + 1)
    keep = oversize(publisher).keeper(large)
    assert keep is not None
    with structlog.testing.capture_logs() as logs:
        await keep(large)
    (letter,) = publisher.published
    assert (letter["exchange"], letter["routing_key"]) == ("", "billing.invoices.dead")
    assert letter["body"] == large.body and letter["timeout_s"] == 3.0
    listed = PropertyList(letter["properties"])
    headers = {entry[0]: listed.value(entry) for entry in listed.entries}
    assert {name: value for name, value in headers.items() if name.startswith(b"x-inbox-")} == {
        b"x-inbox-key": str(large.key),
        b"x-inbox-consumer": "billing",
        b"x-inbox-generation": "1",
        b"x-inbox-state": "rejected",
        b"x-inbox-reason": "too_large",
    }
    assert (listed.text("message_id"), listed.text("reply_to")) == (b"m-1", b"answers")
    (line,) = logs
    assert line["event"] == "message.too_large" and line["queue"] == "billing.invoices.dead"
    assert line["stored_bytes"] == LIMIT + 1 and line["message_id"] == "m-1"


async def test_a_publish_that_is_not_confirmed_keeps_nothing_and_says_why() -> None:
    error = PublishReturned(exchange="", routing_key="billing.invoices.dead", message_id="m-1", problem="no queue")
    keep = oversize(FakePublisher(error)).keeper(of_size(LIMIT + 1))
    assert keep is not None
    with structlog.testing.capture_logs() as logs, pytest.raises(NotKept, match="no queue"):
        await keep(of_size(LIMIT + 1))
    assert [line["event"] for line in logs] == ["message.not_kept"]


async def test_a_consumer_that_wants_no_dead_letters_has_nothing_that_keeps_it() -> None:
    publisher = FakePublisher()
    keep = oversize(publisher, "dead_letters = false").keeper(of_size(LIMIT + 1))
    assert keep is not None
    with pytest.raises(NotKept, match="dead_letters = false"):
        await keep(of_size(LIMIT + 1))
    assert publisher.published == []
