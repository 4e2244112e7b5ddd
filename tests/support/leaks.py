"""What a user can leave behind in a session, each with a question whose answer shows it."""

from __future__ import annotations

from dataclasses import dataclass

from pools import Checkout, Pool


@dataclass(frozen=True)
class Leak:
    """A statement that leaves something behind, and a question whose answer shows it."""

    leave: str
    look: str


FOLDABLE = {
    "SET": Leak("set work_mem = '77MB'", "select current_setting('work_mem')"),
    "set_config": Leak(
        "select set_config('shop.user', 'eve', false)", "select nullif(current_setting('shop.user', true), '')"
    ),
    "search_path": Leak("set search_path = pg_catalog", "select current_setting('search_path')"),
    "time zone": Leak("set time zone 'Asia/Tokyo'", "select current_setting('TimeZone')"),
    "a setting of ours": Leak("set lock_timeout = 0", "select current_setting('lock_timeout')"),
    "a setting that ends statements": Leak("set statement_timeout = 1", "select current_setting('statement_timeout')"),
    "default read-only": Leak(
        "set default_transaction_read_only = on", "select current_setting('transaction_read_only')"
    ),
    "default isolation": Leak(
        "set default_transaction_isolation = serializable", "select current_setting('default_transaction_isolation')"
    ),
    "default deferrable": Leak(
        "set default_transaction_deferrable = on", "select current_setting('transaction_deferrable')"
    ),
    "synchronous_commit": Leak("set synchronous_commit = off", "select current_setting('synchronous_commit')"),
    "LISTEN": Leak("listen news", "select count(*) from pg_listening_channels()"),
    "WITH HOLD cursor": Leak(
        "declare kept cursor with hold for select 1", "select count(*) from pg_cursors where name = 'kept'"
    ),
    "temporary table": Leak(
        "create temporary table scratch (id integer)", "select to_regclass('pg_temp.scratch')::text"
    ),
    "last value of a sequence": Leak(
        "select nextval('public.numbers')",
        "select count(*) from pg_sequences where sequencename = 'numbers' and public.last()",
    ),
}
"""What `SESSION_RESET` undoes."""

UNFOLDABLE = {
    "session lock": Leak(
        "select pg_advisory_lock(7)",
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
    ),
    "PREPARE": Leak("prepare kept as select 1", "select count(*) from pg_prepared_statements where from_sql"),
}
"""What it leaves to whoever folds it."""

SUPERUSERS = {
    "SET ROLE": Leak("set role pg_monitor", "select current_user::text"),
    "replication role": Leak(
        "set session_replication_role = replica", "select current_setting('session_replication_role')"
    ),
    "SET SESSION AUTHORIZATION": Leak("set session authorization pg_monitor", "select session_user::text"),
}
"""What `SESSION_RESET` undoes too; not every role can leave it."""

LEAKS = FOLDABLE | UNFOLDABLE
"""All that a role like the product's can leave."""

PREPARATION = """
drop sequence if exists public.numbers;
create sequence public.numbers;
create or replace function public.last() returns boolean language plpgsql as $$
begin return lastval() is not null; exception when object_not_in_prerequisite_state then return false; end $$
"""


async def leave(pool: Pool, leak: Leak) -> Checkout:
    """Be a user who leaves something behind, and the reset to the next one."""
    checkout = await pool.checkout(folds_reset=True)
    await checkout.connection.execute(leak.leave)
    await checkout.release()
    return checkout


async def answer_like_new(pool: Pool, leak: Leak) -> object:
    """Return the answer of a session that nobody has used."""
    checkout = await pool.checkout()
    try:
        return await checkout.connection.fetchval(leak.look)
    finally:
        checkout.terminate()
