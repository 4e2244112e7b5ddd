"""What becomes of a message next, as operators are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from consumers.timeline import prospect
from inbox.messages import Identity, MessageRow, Story
from inbox.states import State

NOW = datetime(2026, 3, 1, 9, 14, 2, tzinfo=UTC)
KEY = UUID(int=1)
ROW = MessageRow(
    key=KEY,
    consumer="billing",
    source="shop",
    message_id="m-1",
    type="order.placed",
    state=State.WAITING,
    reason=None,
    generation=1,
    attempts=1,
    due_at=NOW,
    finished_at=None,
    first_seen_at=NOW - timedelta(minutes=1),
    changed_at=NOW - timedelta(minutes=1),
    error_class="ValueError",
    body_bytes=2,
    kept_bytes=2,
    body_sha256=None,
    copy_needed=False,
    dead_letter_needed=False,
)


def story(row: MessageRow) -> Story:
    """Return the story of a message that has this row, as of `NOW`."""
    return Story(
        identity=Identity(key=KEY, consumer=row.consumer, source=row.source, message_id=row.message_id),
        read_at=NOW,
        type=row.type,
        first_seen_at=row.first_seen_at,
        row=row,
        processed_at=None,
        attempts=(),
        history=(),
    )


@pytest.mark.parametrize(
    ("due_in_s", "copy_needed", "told"),
    [
        (5, False, "It waits in the broker, and is due at 2026-03-01 09:14:07.000Z."),
        (5, True, "It is due at 2026-03-01 09:14:07.000Z, and a copy of it is owed to its queue."),
        (
            -5,
            False,
            "It was due at 2026-03-01 09:13:57.000Z; its copy is late or lost, "
            "and the sweep has another one made if none comes.",
        ),
        (-5, True, "It was due at 2026-03-01 09:13:57.000Z, and a copy of it is owed to its queue."),
    ],
)
def test_a_message_that_waits_is_due_and_one_that_is_past_its_time_was(
    due_in_s: float, copy_needed: bool, told: str
) -> None:
    waiting = replace(ROW, due_at=NOW + timedelta(seconds=due_in_s), copy_needed=copy_needed)
    assert prospect(story(waiting)) == told
