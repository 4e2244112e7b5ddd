-- The receipt's partitions.

-- name: receipt_partitions
-- Attached partitions with their bounds as text, oldest first.
select c.relname as name, pg_get_expr(c.relpartbound, c.oid) as bound
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
 where i.inhparent = 'inbox.receipt'::regclass and not i.inhdetachpending
 order by c.relname;

-- name: clock
-- Database time.
select inbox.clock();

-- name: lock_partitions
-- One maker at a time, until its transaction ends.
select pg_advisory_xact_lock(7310866438);
