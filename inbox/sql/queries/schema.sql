-- What the start of a process checks, and what migrations need.

-- name: migrations_exist
-- Whether the inbox schema is there at all.
select to_regclass('inbox.migration') is not null;

-- name: applied_migrations
-- Every applied migration, oldest first.
select number, name, checksum from inbox.migration order by number;

-- name: note_migration
-- Remember an applied migration with the checksum of its file.
insert into inbox.migration (number, name, checksum) values ($1, $2, $3);

-- name: current_role
-- Who it is that may not do something.
select current_user;

-- name: try_migration_lock
-- Polled, never waited for: a waiting session's snapshot would itself block concurrent index builds.
select pg_try_advisory_lock($1);

-- name: session_facts
-- Settings that decide whether a commit is durable and a text can be stored, as this session has them.
select current_setting('synchronous_commit') as synchronous_commit,
       current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       pg_encoding_to_char(d.encoding) as encoding,
       pg_is_in_recovery() as in_recovery,
       current_setting('server_version_num')::integer as server_version
  from pg_database d where d.datname = current_database();

-- name: probe
-- Whether this server takes writes now.
select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on';
