-- Partitions of receipts and of events.

-- name: partitions
-- A table's attached partitions with their bounds, oldest first.
select name, lower, upper from inbox.partitions_of($1) order by lower;

-- name: stamp_nobody
-- Do what the stamp of a first delivery does, for a key that no message has; the caller rolls it back.
call inbox.stamp(gen_random_uuid());

-- name: clock
-- Database time.
select inbox.clock();

-- name: lock_partitions
-- One maker at a time, until its transaction ends.
select pg_advisory_xact_lock(7310866438);
