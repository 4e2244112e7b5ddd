"""What the test's database adds to the product's schema: a clock that moves by hand, doors, and a memory of its own.

Triggers write down every committed change of a message's state and of an attempt's outcome, so that no change is
missed that a later one hides. What a transaction that rolls back did is forgotten with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.support.databases import Database
from tests.support.ledger import create_ledger

_DOORS = 4711

_DDL = f"""
create schema witness;

create table witness.clock (began timestamptz not null default clock_timestamp(), passed_s double precision not null);
insert into witness.clock (passed_s) values (0);

create or replace function inbox.clock() returns timestamptz
    language sql volatile
    as $$ select began + make_interval(secs => passed_s) from witness.clock $$;

-- The place right before a claim takes the key's lock, within its own statement, where a test can let it wait.
create or replace function inbox.lock_id(p_key uuid) returns bigint
    language plpgsql volatile
    set lock_timeout = 0
    as $$
declare
    v_door integer := hashtext(current_setting('application_name') || p_key);
begin
    perform pg_advisory_lock_shared({_DOORS}, v_door);
    perform pg_advisory_unlock_shared({_DOORS}, v_door);
    return uuid_hash_extended(p_key, 7310866437);
end
$$;

create table witness.change (
    place      bigint generated always as identity,
    key        uuid not null,
    generation integer not null,
    before     text not null,
    after      text not null,
    reason     text,
    early_s    double precision
);

create function witness.note_change() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into witness.change (key, generation, before, after, reason)
        values (new.key, new.generation, 'new', new.state, new.reason);
    elsif tg_op = 'DELETE' then
        insert into witness.change (key, generation, before, after)
        values (old.key, old.generation, old.state, 'processed');
    elsif (old.state, old.generation, old.claim_id) is distinct from (new.state, new.generation, new.claim_id) then
        insert into witness.change (key, generation, before, after, reason, early_s)
        values (new.key, new.generation, old.state, new.state, new.reason,
                extract(epoch from old.due_at - inbox.clock()));
    end if;
    return null;
end $$;

create trigger witness after insert or update or delete on inbox.message
    for each row execute function witness.note_change();

create table witness.judgement (
    place     bigint generated always as identity,
    claim_id  uuid not null,
    key       uuid not null,
    number    integer not null,
    member_id uuid not null,
    before    text,
    after     text not null,
    charged   boolean not null,
    alone     boolean not null
);

create function witness.note_judgement() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into witness.judgement (claim_id, key, number, member_id, after, charged, alone)
        values (new.claim_id, new.key, new.number, new.member_id, new.outcome, new.charged, new.alone);
    elsif (old.outcome, old.charged) is distinct from (new.outcome, new.charged) then
        insert into witness.judgement (claim_id, key, number, member_id, before, after, charged, alone)
        values (new.claim_id, new.key, new.number, new.member_id, old.outcome, new.outcome, new.charged, new.alone);
    end if;
    return null;
end $$;

create trigger witness after insert or update on inbox.attempt
    for each row execute function witness.note_judgement();
"""

_FORGET = """
with ended as (delete from inbox.message), received as (delete from inbox.receipt), left_ as (delete from inbox.member),
     written as (delete from ledger), noted as (delete from inbox.exhaustion)
update witness.clock set began = clock_timestamp(), passed_s = 0
"""

_STANDINGS = """
select w.message_id, m.state, m.reason, m.generation, m.claim_id, m.free_death_spent,
       (select count(*) from inbox.receipt r where r.key = w.key) as receipts,
       array(select l.writer::uuid from ledger l where l.message_id = w.message_id) as writers,
       coalesce(a.charged, 0) as charged, coalesce(a.aborted, 0) as aborted, coalesce(a.free_deaths, 0) as free_deaths,
       coalesce(a.undecided, '{}') as undecided
  from unnest($1::uuid[], $2::text[]) w(key, message_id)
  left join inbox.message m using (key)
  left join lateral (
        select count(*) filter (where a.charged) as charged,
               count(*) filter (where a.outcome = 'aborted') as aborted,
               count(*) filter (where a.outcome = 'crashed' and not a.charged) as free_deaths,
               array_agg(a.claim_id) filter (where a.outcome = 'started') as undecided
          from inbox.attempt a where a.key = m.key and a.generation = m.generation) a on true
"""


@dataclass(frozen=True, slots=True)
class Change:
    """A message changed its state, or its claim. `early_s`: how long before its due time."""

    key: UUID
    before: str
    after: str
    reason: str | None
    early_s: float | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """An attempt was put on record, or its outcome changed. `before` is None for the first word on it."""

    claim_id: UUID
    key: UUID
    member_id: UUID
    before: str | None
    after: str
    charged: bool
    alone: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """What is durable about one message now; the counts are of its generation. `writers`: claims of its effects."""

    message_id: str
    state: str | None
    reason: str | None
    claim_id: UUID | None
    free_death_spent: bool | None
    receipts: int
    writers: tuple[UUID, ...]
    charged: int
    aborted: int
    free_deaths: int
    undecided: tuple[UUID, ...]


class Witness:
    """Asks the database, on a connection of its own, one question at a time."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._turn = asyncio.Lock()

    async def prepare(self) -> None:
        """Add the clock, the doors and the memory to a fresh database."""
        await create_ledger(self.database)
        await self.database.execute(_DDL)

    async def forget(self) -> None:
        """Empty every table, for the next example."""
        await self._ask(_FORGET)
        await self._ask("delete from witness.change")
        await self._ask("delete from witness.judgement")

    async def pass_time(self, seconds: float, alive: list[UUID]) -> None:
        """Move the clock; the heartbeats of these processes come in time meanwhile."""
        await self._ask(
            "with moved as (update witness.clock set passed_s = passed_s + $1 returning began, passed_s) "
            "update inbox.member set heartbeat_at = began + make_interval(secs => passed_s), steady_since = case "
            "when heartbeat_at + expiry > began + make_interval(secs => passed_s - $1) then steady_since "
            "else began + make_interval(secs => passed_s) end from moved where id = any($2) and stopped_at is null",
            seconds,
            alive,
        )

    async def changes(self) -> list[Change]:
        """Return the changes that were committed since the last question, in their order."""
        rows = await self._ask("delete from witness.change returning *")
        return [
            Change(row["key"], row["before"], row["after"], row["reason"], row["early_s"])
            for row in sorted(rows, key=lambda row: row["place"])
        ]

    async def judgements(self) -> list[Judgement]:
        """Return the judgements that were committed since the last question, in their order."""
        rows = await self._ask("delete from witness.judgement returning *")
        return [
            Judgement(
                row["claim_id"],
                row["key"],
                row["member_id"],
                row["before"],
                row["after"],
                row["charged"],
                row["alone"],
            )
            for row in sorted(rows, key=lambda row: row["place"])
        ]

    async def standings(self, keys: dict[UUID, str]) -> list[Standing]:
        """Return what is durable about each message, by one statement."""
        rows = await self._ask(_STANDINGS, list(keys), list(keys.values()))
        return [
            Standing(
                row["message_id"],
                row["state"],
                row["reason"],
                row["claim_id"],
                row["free_death_spent"],
                row["receipts"],
                tuple(row["writers"]),
                row["charged"],
                row["aborted"],
                row["free_deaths"],
                tuple(row["undecided"]),
            )
            for row in rows
        ]

    async def close_door(self, application_name: str, key: UUID) -> None:
        """Let claims of this message by these sessions wait before the lock."""
        await self._door("pg_advisory_lock", application_name, key)

    async def open_door(self, application_name: str, key: UUID) -> None:
        """Let them go on."""
        await self._door("pg_advisory_unlock", application_name, key)

    async def waits_at_door(self, pid: int) -> bool:
        """Return whether a session waits at a closed door."""
        return await self._tell(
            "select exists (select from pg_locks where locktype = 'advisory' and classid = $1::integer::oid "
            "and objsubid = 2 and not granted and pid = $2)",
            _DOORS,
            pid,
        )

    async def is_gone(self, pid: int) -> bool:
        """Return whether a session has ended, its locks with it."""
        return not await self._tell(
            "select exists (select from pg_stat_activity where pid = $1 union all select from pg_locks where pid = $1)",
            pid,
        )

    async def terminate(self, pid: int) -> None:
        """End a session as an administrator does."""
        await self._ask("select pg_terminate_backend($1)", pid)

    async def handler_starts(self, key: UUID, claim_id: UUID, *, lives: bool) -> bool:
        """Return whether an attempt is counted; assert that it may start, if its session lives and so holds its key.

        Then nothing has ended its message, and it is nobody else's.
        """
        row = (
            await self._ask(
                "select (select state from inbox.message where key = $1) as state, "
                "(select claim_id from inbox.message where key = $1) as owner, "
                "exists (select from inbox.receipt where key = $1) as received, "
                "exists (select from inbox.attempt where claim_id = $2) as counted",
                key,
                claim_id,
            )
        )[0]
        found = (row["state"], row["owner"], row["received"])
        expected = ("attempting", claim_id, False) if row["counted"] else (None, None, False)
        assert not lives or found == expected, f"a handler starts although the message is {found}, not {expected}"
        return bool(row["counted"])

    async def _ask(self, query: str, *arguments: object) -> list[Any]:
        async with self._turn:
            return await self.database.fetch(query, *arguments)

    async def _tell(self, query: str, *arguments: object) -> Any:
        async with self._turn:
            return await self.database.fetchval(query, *arguments)

    async def _door(self, function: str, application_name: str, key: UUID) -> None:
        await self._ask(f"select {function}({_DOORS}, hashtext($1::text || $2::uuid))", application_name, key)
