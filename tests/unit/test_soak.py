"""The soak's own parts: what it publishes, what it breaks, and that its judge finds what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from uuid import UUID, uuid4

import pytest

import inbox
from consumers.codec import Decoded, decode
from consumers.config import parse
from consumers.plan import plan
from soak_parts.facts import (
    AttemptFact,
    Facts,
    LetterFact,
    Limits,
    OperationFact,
    RecordFact,
    RowFact,
    Said,
    Tables,
)
from soak_parts.faults import Breakage, schedule
from soak_parts.judge import MOST_MEMORY_MIB, judge
from soak_parts.logs import Logs
from soak_parts.mail import CONSUMER, SOURCE, TYPE, Kind, Mail, mail
from soak_parts.sender import encoded
from soak_parts.slots import End, Start
from tests.support.servers import CHECKOUT

RECORD = UUID(int=1)
KILLER, VICTIM, LIVING = 101, 102, 103


def some_mail(number: int, kind: Kind) -> Mail:
    return Mail(number=number, kind=kind, trouble=1, at_once=1, later_s=(), pad=0, mended=True, given_up=True)


def attempt(
    of: str, number: int, outcome: str, *, charged: bool, alone: bool = False, pid: int = LIVING
) -> AttemptFact:
    return AttemptFact(
        message_id=of, generation=1, number=number, outcome=outcome, charged=charged, alone=alone, pid=pid
    )


def start(pid: int, end: End, code: int, *, peak_mib: float = 60.0) -> Start:
    return Start(slot=0, pid=pid, log=Path("process-0-000.log"), end=end, code=code, peak_mib=peak_mib)


PLAIN, FAILING, REJECTING = some_mail(0, Kind.PLAIN), some_mail(1, Kind.FAILING), some_mail(2, Kind.REJECTING)
MENDED = some_mail(3, Kind.FAILING)
REPLAYED = OperationFact(message_id=MENDED.id, event="replayed", generation=1, was="exhausted")
TABLES = Tables(
    effects={PLAIN.id: 1, MENDED.id: 1},
    processed=frozenset({PLAIN.id, MENDED.id}),
    strangers=0,
    rows={
        FAILING.id: RowFact(state="exhausted", reason="attempts", generation=1),
        REJECTING.id: RowFact(state="rejected", reason="no", generation=1),
    },
    attempts=[attempt(FAILING.id, number, "failed", charged=True) for number in (1, 2)],
    operations=[REPLAYED],
    records=[RecordFact(id=RECORD, message_id=FAILING.id, generation=1, acknowledged=True)],
    told={RECORD: 1},
)
RIGHT = Facts(
    published={message.id: message for message in (PLAIN, FAILING, REJECTING, MENDED)},
    sent={PLAIN.id: 2, FAILING.id: 1, REJECTING.id: 1, MENDED.id: 1},
    tables=TABLES,
    handled={
        (PLAIN.id, 1): frozenset({"a"}),
        (FAILING.id, 1): frozenset({"b", "c"}),
        (MENDED.id, 1): frozenset({"d", "e"}),
        (MENDED.id, 2): frozenset({"f"}),
    },
    killers={KILLER: FAILING.id},
    starts=[start(KILLER, End.BY_ITSELF, -9), start(VICTIM, End.KILLED, -9), start(LIVING, End.STOPPED, 0)],
    said=Said(replayed={(MENDED.id, 1)}),
    letters=[LetterFact(message_id=message.id, generation=1) for message in (FAILING, REJECTING, MENDED)],
    left={"soak.messages": 0},
    not_given_back=[],
    alarms=[],
    limits=Limits(max_attempts=2, max_aborts=3),
)


def with_tables(**changed: object) -> Facts:
    return replace(RIGHT, tables=replace(TABLES, **changed))  # type: ignore[arg-type]


def with_attempts(*attempts: AttemptFact) -> Facts:
    return with_tables(attempts=[*TABLES.attempts, *attempts])


def discarded(of: Mail, *, was: str = "exhausted") -> Facts:
    operation = OperationFact(message_id=of.id, event="discarded", generation=1, was=was)
    rows = {**TABLES.rows, of.id: RowFact(state="discarded", reason="given up", generation=1)}
    return with_tables(operations=[REPLAYED, operation], rows=rows)


def complaints(facts: Facts) -> Mapping[str, Sequence[str]]:
    return {complaint.what: complaint.ids for complaint in judge(facts)}


def test_a_run_in_which_each_message_came_to_its_right_end_is_right() -> None:
    assert complaints(RIGHT) == {}


@pytest.mark.parametrize(
    ("facts", "what", "ids"),
    [
        (with_tables(effects={**TABLES.effects, PLAIN.id: 2}), "1 effects are doubled", [PLAIN]),
        (with_tables(effects={**TABLES.effects, MENDED.id: 2}), "1 effects are doubled", [MENDED]),
        (with_tables(effects={MENDED.id: 1}), "1 messages are processed without an effect", [PLAIN]),
        (
            with_tables(effects={**TABLES.effects, FAILING.id: 1}),
            "1 effects are of messages that are not processed",
            [FAILING],
        ),
        (
            with_tables(processed=frozenset({MENDED.id}), effects={MENDED.id: 1}),
            "1 messages are lost: confirmed, and nowhere on record",
            [PLAIN],
        ),
        (
            with_tables(processed=TABLES.processed | {FAILING.id}, effects={**TABLES.effects, FAILING.id: 1}),
            "1 messages are processed and on record besides",
            [FAILING],
        ),
        (
            with_tables(rows={**TABLES.rows, REJECTING.id: RowFact(state="waiting", reason=None, generation=1)}),
            "1 messages have not come to an end",
            [REJECTING],
        ),
        (
            with_tables(rows={**TABLES.rows, REJECTING.id: RowFact(state="attempting", reason=None, generation=1)}),
            "1 messages have not come to an end",
            [REJECTING],
        ),
        (
            with_tables(
                rows={**TABLES.rows, PLAIN.id: RowFact(state="rejected", reason="no", generation=1)},
                processed=frozenset({MENDED.id}),
                effects={MENDED.id: 1},
            ),
            "1 messages that are plain are rejected, not processed",
            [PLAIN],
        ),
        (with_tables(operations=[]), "1 messages that are failing are processed, not exhausted", [MENDED]),
        (
            with_tables(
                rows={**TABLES.rows, MENDED.id: RowFact(state="exhausted", reason="attempts", generation=2)},
                processed=frozenset({PLAIN.id}),
                effects={PLAIN.id: 1},
            ),
            "1 messages that are failing are exhausted, not processed",
            [MENDED],
        ),
        (
            with_tables(rows={**TABLES.rows, FAILING.id: RowFact(state="discarded", reason="no", generation=1)}),
            "1 messages that are failing are discarded, not exhausted",
            [FAILING],
        ),
        (with_tables(operations=[]), "1 messages were said to be replayed, and were not", [MENDED]),
        (
            replace(RIGHT, said=Said(replayed={(MENDED.id, 1)}, discarded={FAILING.id})),
            "1 messages were said to be discarded, and were not",
            [FAILING],
        ),
        (
            replace(discarded(FAILING), published={**RIGHT.published, FAILING.id: replace(FAILING, given_up=False)}),
            "1 messages are discarded that were not to be",
            [FAILING],
        ),
        (discarded(FAILING, was="waiting"), "1 messages were replayed or discarded before they had ended", [FAILING]),
        (
            with_tables(operations=[REPLAYED, REPLAYED]),
            "1 messages were replayed or discarded twice after one end",
            [MENDED],
        ),
        (replace(RIGHT, handled={}), "1 messages were replayed, and not tried again", [MENDED]),
        (replace(RIGHT, letters=RIGHT.letters[1:]), "1 messages have ended without a dead letter", [FAILING]),
        (
            replace(RIGHT, letters=[*RIGHT.letters, LetterFact(message_id=PLAIN.id, generation=1)]),
            "1 dead letters are of messages that had not ended",
            [PLAIN],
        ),
        (
            replace(RIGHT, letters=[*RIGHT.letters, LetterFact(message_id=None, generation=1)]),
            "1 dead letters name no row of a message that was published",
            [],
        ),
        (
            with_tables(attempts=TABLES.attempts[:1]),
            "1 messages are exhausted with budget left",
            [FAILING],
        ),
        (
            with_attempts(attempt(FAILING.id, 3, "failed", charged=True)),
            "1 messages were charged more than they may be",
            [FAILING],
        ),
        (
            with_attempts(*(attempt(PLAIN.id, number, "aborted", charged=False) for number in range(4))),
            "1 messages were given up more often than may be",
            [PLAIN],
        ),
        (
            with_attempts(*(attempt(PLAIN.id, number, "crashed", charged=False, pid=VICTIM) for number in (1, 2))),
            "1 messages had more than one free death in a generation",
            [PLAIN],
        ),
        (
            replace(RIGHT, handled={(PLAIN.id, 1): frozenset(map(str, range(9)))}),
            "1 messages were started more often than may be",
            [PLAIN],
        ),
        (
            with_attempts(attempt(PLAIN.id, 1, "crashed", charged=True, alone=True, pid=LIVING)),
            "1 messages have a death on record of a process that lived",
            [PLAIN],
        ),
        (
            with_attempts(attempt(PLAIN.id, 1, "crashed", charged=True, alone=True, pid=KILLER)),
            "1 messages were charged for what another one did to its process",
            [PLAIN],
        ),
        (
            with_attempts(attempt(PLAIN.id, 1, "crashed", charged=True, pid=KILLER)),
            "1 messages were charged for what another one did to its process",
            [PLAIN],
        ),
        (with_tables(records=[], told={}), "1 messages are exhausted without a record", [FAILING]),
        (with_tables(told={}), "1 exhaustions have not had exactly one committed effect", [FAILING]),
        (with_tables(told={RECORD: 2}), "1 exhaustions have not had exactly one committed effect", [FAILING]),
        (
            with_tables(records=[replace(TABLES.records[0], acknowledged=False)]),
            "1 exhaustions are not acknowledged",
            [FAILING],
        ),
        (with_tables(strangers=1), "1 receipts are of no message that was published", []),
        (replace(RIGHT, left={"soak.messages": 3}), "3 messages are left in queue soak.messages", []),
        (replace(RIGHT, not_given_back=["7 advisory locks are held"]), "7 advisory locks are held", []),
        (replace(RIGHT, alarms=["lane.fault"]), "a log has a line without explanation: lane.fault", []),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_messages_it_is_wrong_of(facts: Facts, what: str, ids: Sequence[Mail]) -> None:
    assert complaints(facts)[what] == tuple(message.id for message in ids)


def test_a_message_that_an_operator_gave_up_has_come_to_its_right_end() -> None:
    assert complaints(replace(discarded(FAILING), said=Said(discarded={FAILING.id}))) == {}


def test_a_dead_letter_that_came_twice_is_right() -> None:
    assert complaints(replace(RIGHT, letters=[*RIGHT.letters, *RIGHT.letters])) == {}


def test_a_death_that_was_somebody_elses_doing_is_charged_once_the_free_one_is_spent() -> None:
    free = attempt(PLAIN.id, 1, "crashed", charged=False, pid=KILLER)
    charged = attempt(PLAIN.id, 3, "crashed", charged=True, pid=KILLER)

    assert complaints(with_attempts(free, charged)) == {}


@pytest.mark.parametrize(
    ("ended", "what"),
    [
        (start(7, End.BY_ITSELF, 1), "ended by itself with exit code 1"),
        (start(7, End.BY_ITSELF, -9), "ended by itself with exit code -9"),
        (start(7, End.STOPPED, 1), "stopped with exit code 1 instead of 0"),
        (start(7, End.OVERDUE, -9), "did not stop in time after SIGTERM"),
        (start(7, End.STOPPED, 0, peak_mib=2 * MOST_MEMORY_MIB), "MiB of memory"),
    ],
)
def test_a_process_that_ends_otherwise_than_it_was_told_to_is_wrong(ended: Start, what: str) -> None:
    [found] = complaints(replace(RIGHT, starts=[*RIGHT.starts, ended]))

    assert what in found


def test_the_same_seed_breaks_the_same_things_in_the_same_order() -> None:
    faults = schedule(7, 600, slots=3)

    assert faults == schedule(7, 600, slots=3)
    assert faults != schedule(8, 600, slots=3)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert faults[-1].at_s <= 600
    assert {fault.slot for fault in faults} == {0, 1, 2}


def test_two_minutes_of_any_seed_break_everything_once() -> None:
    for seed in range(50):
        assert {fault.breakage for fault in schedule(seed, 115, slots=3)} == set(Breakage)


def test_the_same_seed_publishes_the_same_messages_of_all_kinds() -> None:
    sent = [mail(7, number) for number in range(5000)]

    assert sent == [mail(7, number) for number in range(5000)]
    counts = Counter(message.kind for message in sent)
    assert counts[Kind.KILLING] == 5
    assert all(counts[kind] > 20 for kind in set(Kind) - {Kind.KILLING})
    assert {message.copies for message in sent} == {1, 2, 3, 4}
    poison = [message for message in sent if message.kind.is_poison]
    assert len({(message.mended, message.given_up) for message in poison}) == 4
    assert not any(
        mail(7, number, poison=False).kind in (Kind.FAILING, Kind.REJECTING, Kind.KILLING) for number in range(500)
    )


def test_what_is_sent_is_read_as_the_message_that_was_meant() -> None:
    message = mail(7, 12)
    body, properties = encoded(message)

    decoded = decode(
        consumer=CONSUMER,
        queue="q",
        body=body,
        properties=b"".join(properties.encode()),
        fault=None,
        exchange="",
        routing_key="q",
        redelivered=False,
    )

    assert isinstance(decoded, Decoded)
    assert decoded.message.key == inbox.message_key(CONSUMER, SOURCE, message.id)
    assert decoded.message.type == TYPE
    assert decoded.envelope(inbox.Attempt(1, 1, uuid4())).decode(dict)["kind"] == message.kind


def test_the_fleet_of_the_soak_fits_its_handlers() -> None:
    file = CHECKOUT / "scripts" / "soak_parts" / "fleet.toml"

    planned = plan(parse(Template(file.read_text()).substitute(port=0), file=str(file)))

    assert list(planned.consumers) == [CONSUMER]
    assert list(planned.consumers[CONSUMER].consumer.handlers) == [TYPE]


def test_errors_in_a_log_are_alarms_unless_poison_or_a_broken_server_explains_them(tmp_path: Path) -> None:
    log = tmp_path / "process-0-000.log"
    said = [
        {"level": "info", "event": "process.started"},
        {"level": "warning", "event": "publisher.waiting"},
        {"level": "error", "event": "attempt.settled", "outcome": "exhausted"},
        {"level": "error", "event": "error when creating transport: refused", "logger": "aiormq.connection"},
        {"level": "error", "event": "Unexpected connection close from remote: 320", "logger": "aiormq.connection"},
        {"level": "error", "event": "lane.fault"},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in said) + "Traceback\n" + '{"level": "er')

    logs = Logs([replace(start(1, End.KILLED, -9), log=log)])

    assert len(logs.alarms) == 2
    assert "lane.fault" in logs.alarms[0]
    assert logs.alarms[1].endswith("Traceback")
    assert logs.events["publisher.waiting"] == 1
    assert logs.events["process.started"] == 0
