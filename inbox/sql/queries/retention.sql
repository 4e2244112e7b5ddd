-- What has ended long ago, and how it is removed: in small steps, none of which waits for anybody.

-- name: say_retention
-- How long this service wants receipts to be kept.
insert into inbox.retention as r (service, receipts, said_at)
values ($1, make_interval(secs => $2), inbox.clock())
on conflict (service) do update set receipts = excluded.receipts, said_at = excluded.said_at;

-- name: forget_retention
-- A service that has said nothing for as long as it wanted receipts kept has none left that it could miss.
delete from inbox.retention where said_at + receipts < inbox.clock();

-- name: receipts_horizon
-- Receipts older than this are wanted by no service; null: none has said anything.
select inbox.clock() - max(receipts) from inbox.retention;

-- name: past_partitions
-- Attached partitions all of whose receipts are older than the horizon, oldest first.
select name, lower from inbox.partitions_of('receipt') where upper <= $1 order by lower;

-- name: pending_partitions
-- Partitions whose detaching was interrupted: nobody reads them any more, and they stand in the way of the next one.
select c.relname as name
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
 where i.inhparent = 'inbox.receipt'::regclass and i.inhdetachpending;

-- name: detached_partitions
-- Tables with the name of a partition that are part of nothing any more.
select c.relname as name
  from pg_class c
 where c.relnamespace = 'inbox'::regnamespace and c.relkind = 'r' and not c.relispartition
   and c.relname ~ '^receipt_\d{8}_\d{6}$'
   and not exists (select from pg_inherits i where i.inhrelid = c.oid)
 order by c.relname;

-- name: remove_messages
-- Remove a page of messages that have ended and owe nothing; see the function.
select seen, removed, last_at, last_key from inbox.remove_messages($1, $2, $3, $4, $5);

-- name: remove_exhaustions
-- Remove some of a consumer's exhaustion records that were acknowledged so long ago; see the function.
select inbox.remove_exhaustions($1, $2, $3);

-- name: remove_history
-- Remove some of what happened so long ago to a consumer's messages that are not on record any more; see the function.
select inbox.remove_history($1, $2, $3);

-- name: remove_replays
-- Remove some of a service's replay jobs that were over so long ago, their items first; see the function.
select inbox.remove_replays($1, $2, $3);

-- name: count_open
-- How many messages of each consumer are on record and not at an end, counted up to its bound.
select consumer, number from inbox.count_open($1, $2);
