"""The judge: what must be true of a run, whatever was broken in it, and which messages it is not true of.

Each rule is a function of the facts alone, so each can be tested with a run that never took place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from soak_parts.facts import AttemptFact, Facts
from soak_parts.mail import Kind
from soak_parts.slots import End, Start

MOST_MEMORY_MIB = 150.0
"""A process of the soak takes some 60 MiB; one that holds on to what it handled takes more and more."""

_SIGKILLED = -9
_ENDED = ("exhausted", "rejected")
_ENDS: dict[Kind, str] = {
    Kind.PLAIN: "processed",
    Kind.FLAKY: "processed",
    Kind.SLOW: "processed",
    Kind.FAILING: "exhausted",
    Kind.KILLING: "exhausted",
    Kind.REJECTING: "rejected",
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that must not be, and the messages that it is said of."""

    what: str
    ids: tuple[str, ...] = ()


def judge(facts: Facts) -> list[Complaint]:
    """Return what is wrong; nothing if every message has come to its one right end."""
    return [complaint for rule in _RULES for complaint in rule(facts)]


def _ledger(facts: Facts) -> Iterator[Complaint]:
    effects, processed = facts.tables.effects, facts.tables.processed
    yield from _of("effects are doubled", (of for of, number in effects.items() if number > 1))
    yield from _of("messages are processed without an effect", processed - effects.keys())
    yield from _of("effects are of messages that are not processed", effects.keys() - processed)


def _accounts(facts: Facts) -> Iterator[Complaint]:
    published, processed, rows = facts.published.keys(), facts.tables.processed, facts.tables.rows
    yield from _of("messages are lost: confirmed, and nowhere on record", published - processed - rows.keys())
    yield from _of("messages are on record that nobody published", rows.keys() - published)
    yield from _of("messages are processed and on record besides", processed & rows.keys())
    if facts.tables.strangers:
        yield Complaint(f"{facts.tables.strangers} receipts are of no message that was published")
    still_open = [of for of, row in rows.items() if row.state in ("attempting", "waiting")]
    yield from _of("messages have not come to an end", still_open)
    yield from (Complaint(f"{count} messages are left in queue {name}") for name, count in facts.left.items() if count)


def _ends(facts: Facts) -> Iterator[Complaint]:
    replayed, discarded = (
        {one.message_id for one in facts.tables.operations if one.event == event} for event in ("replayed", "discarded")
    )
    wrong: dict[tuple[Kind, str, str], list[str]] = defaultdict(list)
    for of, message in facts.published.items():
        row = facts.tables.rows.get(of)
        end = "processed" if of in facts.tables.processed else row.state if row is not None else None
        is_mended = message.kind.is_poison and message.mended and of in replayed
        right = "discarded" if of in discarded else "processed" if is_mended else _ENDS[message.kind]
        if end in ("processed", *_ENDED, "discarded") and end != right:
            wrong[message.kind, end, right].append(of)
    for (kind, end, right), ids in wrong.items():
        yield from _of(f"messages that are {kind.value} are {end}, not {right}", ids)


def _operations(facts: Facts) -> Iterator[Complaint]:
    said, operations = facts.said, facts.tables.operations
    replayed = {(one.message_id, one.generation) for one in operations if one.event == "replayed"}
    discarded = {one.message_id for one in operations if one.event == "discarded"}
    yield from _of("messages were said to be replayed, and were not", {of for of, _ in said.replayed - replayed})
    yield from _of("messages were said to be discarded, and were not", said.discarded - discarded)
    unmeant = {of for of in discarded if of not in facts.published or not facts.published[of].given_up}
    yield from _of("messages are discarded that were not to be", unmeant)
    early = {one.message_id for one in operations if one.was not in _ENDED}
    yield from _of("messages were replayed or discarded before they had ended", early)
    ends = Counter((one.message_id, one.generation) for one in operations)
    twice = {of for (of, _), number in ends.items() if number > 1}
    yield from _of("messages were replayed or discarded twice after one end", twice)
    not_tried = {of for of, generation in replayed if not facts.handled.get((of, generation + 1))}
    yield from _of("messages were replayed, and not tried again", not_tried)


def _letters(facts: Facts) -> Iterator[Complaint]:
    rows, letters = facts.tables.rows, facts.letters
    nameless = sum(letter.message_id is None for letter in letters)
    if nameless:
        yield Complaint(f"{nameless} dead letters name no row of a message that was published")
    written = {(letter.message_id, letter.generation) for letter in letters if letter.message_id is not None}
    owed = {(of, row.generation) for of, row in rows.items() if row.state in _ENDED}
    before = {(one.message_id, one.generation) for one in facts.tables.operations if one.was in _ENDED}
    yield from _of("messages have ended without a dead letter", {of for of, _ in owed - written})
    yield from _of("dead letters are of messages that had not ended", {of for of, _ in written - owed - before})


def _budgets(facts: Facts) -> Iterator[Complaint]:
    attempts = _by_generation(facts.tables.attempts)
    charged = {of: sum(one.charged for one in made) for of, made in attempts.items()}
    aborted = {of: sum(one.outcome == "aborted" for one in made) for of, made in attempts.items()}
    most, most_aborts = facts.limits.max_attempts, facts.limits.max_aborts
    yield from _of("messages were charged more than they may be", _ids(charged, lambda number: number > most))
    yield from _of("messages were given up more often than may be", _ids(aborted, lambda number: number > most_aborts))
    early = [
        of
        for of, row in facts.tables.rows.items()
        if row.state == "exhausted"
        and (charged, aborted)[row.reason == "aborts"].get((of, row.generation), 0)
        != (most, most_aborts)[row.reason == "aborts"]
    ]
    yield from _of("messages are exhausted with budget left", early)
    free = {of: sum(one.outcome == "crashed" and not one.charged for one in made) for of, made in attempts.items()}
    yield from _of("messages had more than one free death in a generation", _ids(free, lambda number: number > 1))
    too_often = [
        of
        for (of, generation), claims in facts.handled.items()
        if len(claims) > most + most_aborts + 1 + facts.sent[of] + (generation > 1)
    ]
    yield from _of("messages were started more often than may be", too_often)


def _deaths(facts: Facts) -> Iterator[Complaint]:
    starts = {start.pid: start for start in facts.starts}
    crashed = [one for one in facts.tables.attempts if one.outcome == "crashed"]
    no_death = [one for one in crashed if one.pid is None or not _was_lost(starts.get(one.pid))]
    yield from _of("messages have a death on record of a process that lived", {one.message_id for one in no_death})
    attempts = _by_generation(facts.tables.attempts)
    innocent = {
        one.message_id
        for one in crashed
        if one.charged
        and one.pid is not None
        and facts.killers.get(one.pid, one.message_id) != one.message_id
        and not _had_free_death_before(one, attempts[one.message_id, one.generation])
    }
    yield from _of("messages were charged for what another one did to its process", innocent)


def _records(facts: Facts) -> Iterator[Complaint]:
    records = {(record.message_id, record.generation): record for record in facts.tables.records}
    exhausted = {(of, row.generation) for of, row in facts.tables.rows.items() if row.state == "exhausted"}
    yield from _of("messages are exhausted without a record", (of for of, _ in exhausted - records.keys()))
    told = facts.tables.told
    yield from _of(
        "exhaustions have not had exactly one committed effect",
        (record.message_id for record in facts.tables.records if told.get(record.id, 0) != 1),
    )
    yield from _of(
        "exhaustions are not acknowledged",
        (record.message_id for record in facts.tables.records if not record.acknowledged),
    )


def _processes(facts: Facts) -> Iterator[Complaint]:
    for start in facts.starts:
        name = f"process {start.slot + 1} (pid {start.pid}, {start.log.name})"
        match start.end:
            case End.BY_ITSELF if start.code != _SIGKILLED or start.pid not in facts.killers:
                yield Complaint(f"{name} ended by itself with exit code {start.code}")
            case End.STOPPED if start.code != 0 and start.pid not in facts.killers:
                yield Complaint(f"{name} stopped with exit code {start.code} instead of 0")
            case End.OVERDUE:
                yield Complaint(f"{name} did not stop in time after SIGTERM")
            case _:
                pass
        if start.peak_mib > MOST_MEMORY_MIB:
            yield Complaint(f"{name} took {start.peak_mib:.0f} MiB of memory, more than {MOST_MEMORY_MIB:g}")
    yield from (Complaint(what) for what in facts.not_given_back)
    yield from (Complaint(f"a log has a line without explanation: {line}") for line in facts.alarms)


_RULES: tuple[Callable[[Facts], Iterator[Complaint]], ...] = (
    _ledger,
    _accounts,
    _ends,
    _operations,
    _letters,
    _budgets,
    _deaths,
    _records,
    _processes,
)


def _of(what: str, ids: Iterable[str]) -> Iterator[Complaint]:
    found = tuple(sorted(set(ids)))
    if found:
        yield Complaint(f"{len(found)} {what}", found)


def _by_generation(attempts: Iterable[AttemptFact]) -> dict[tuple[str, int], list[AttemptFact]]:
    found: dict[tuple[str, int], list[AttemptFact]] = defaultdict(list)
    for attempt in attempts:
        found[attempt.message_id, attempt.generation].append(attempt)
    return found


def _ids(numbers: dict[tuple[str, int], int], is_wrong: Callable[[int], bool]) -> Iterator[str]:
    return (of for (of, _), number in numbers.items() if is_wrong(number))


def _was_lost(start: Start | None) -> bool:
    """Whether others may have taken a process for dead."""
    return start is not None and (start.apart or start.code != 0)


def _had_free_death_before(attempt: AttemptFact, made: list[AttemptFact]) -> bool:
    """Whether a death in company may be charged: the one that is free was before it."""
    return not attempt.alone and any(
        one.outcome == "crashed" and not one.charged and one.number < attempt.number for one in made
    )


def kinds(facts: Facts) -> dict[str, int]:
    """Return how many messages of each kind were published."""
    return dict(Counter(message.kind.value for message in facts.published.values()))
