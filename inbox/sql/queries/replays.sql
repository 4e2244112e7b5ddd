-- Replay jobs. Functions of these names stand in the migrations.

-- name: freeze_replay
-- Make a job and freeze its items, in the order in which they will be replayed.
with made as (
       insert into inbox.replay (id, service, reason, by_whom, chosen_by, rate, stop_ratio)
       values ($1, $2, $3, $4, $5, $6, $7)
       returning id)
insert into inbox.replay_item (replay_id, position, key, generation, consumer, message_id)
select made.id, found.ordinality, found.key, found.generation, found.consumer, found.message_id
  from made
 cross join inbox.find_messages($8, $9, $10, $11, $12, $13, $14, null, null, $15) with ordinality found;

-- name: find_replays
-- Jobs with their counts, the newest first; null leaves a condition out.
select r.id, r.service, r.reason, r.by_whom, r.chosen_by, r.rate, r.stop_ratio, r.state, r.runner, r.cancelled_by,
       r.created_at, r.finished_at, i.total, i.pending, i.replayed, i.skipped, i.failed, i.processed, i.failed_again,
       exists (select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                  and l.database = (select oid from pg_database where datname = current_database())
                  and (l.classid::bigint << 32) | l.objid::bigint = inbox.replay_lock_id(r.id)) as is_run
  from inbox.replay r
 cross join lateral (
       select count(*) as total,
              count(*) filter (where o.outcome = 'pending') as pending,
              count(*) filter (where o.outcome = 'replayed') as replayed,
              count(*) filter (where o.outcome = 'skipped') as skipped,
              count(*) filter (where o.outcome = 'failed') as failed,
              count(*) filter (where f.fate = 'processed') as processed,
              count(*) filter (where f.fate = 'failed') as failed_again
         from inbox.replay_item o
        cross join lateral (
              select case when o.outcome = 'replayed'
                          then coalesce(o.fate, inbox.replay_fate(o.key, o.generation + 1)) end as fate) f
        where o.replay_id = r.id) i
 where ($1::uuid is null or r.id = $1)
   and ($2::text is null or r.service = $2)
 order by r.created_at desc, r.id desc
 limit $3;

-- name: replay_items
-- Items of a job in their order, after a position; null leaves a condition out.
select o.position, o.key, o.generation, o.consumer, o.message_id, o.outcome, o.detail, o.at,
       case when o.outcome = 'replayed' then coalesce(o.fate, inbox.replay_fate(o.key, o.generation + 1)) end as fate
  from inbox.replay_item o
 where o.replay_id = $1 and o.position > $2 and ($3::text[] is null or o.outcome = any ($3))
 order by o.position
 limit $4;

-- name: try_replay_lock
-- Become the one who runs a job, for as long as this session lives.
select pg_try_advisory_lock(inbox.replay_lock_id($1));

-- name: let_go_of_replay
-- Let somebody else run a job.
select pg_advisory_unlock(inbox.replay_lock_id($1));

-- name: run_replay
-- A job runs, by this runner, also one that was stopped. No row back: it is over.
update inbox.replay
   set state = 'running', runner = $2, finished_at = null
 where id = $1 and state in ('running', 'stopped')
returning id;

-- name: change_replay
-- Give a job that is not over another pace or another bound; null leaves each as it is.
update inbox.replay
   set rate = coalesce($2, rate), stop_ratio = coalesce($3, stop_ratio)
 where id = $1 and state in ('running', 'stopped')
returning id;

-- name: replay_state
-- Whether a job still runs.
select state from inbox.replay where id = $1;

-- name: replay_next
-- Replay one item of a job that runs, if it is pending and its message has ended. Commits by itself.
select outcome, detail from inbox.replay_next($1, $2);

-- name: give_up_item
-- Note that an item cannot be replayed.
update inbox.replay_item
   set outcome = $3, detail = $4, at = inbox.clock()
 where replay_id = $1 and position = $2 and outcome = 'pending';

-- name: judge_replay
-- Note what became of replayed messages, and count those whose fate is known since now, from a position on.
with judged as (
       select o.position, inbox.replay_fate(o.key, o.generation + 1) as fate
         from inbox.replay_item o
        where o.replay_id = $1 and o.outcome = 'replayed' and o.fate is null),
     noted as (
       update inbox.replay_item o
          set fate = judged.fate
         from judged
        where o.replay_id = $1 and o.position = judged.position and judged.fate is not null
       returning o.position, o.fate)
select count(*) filter (where fate = 'processed') as processed, count(*) filter (where fate = 'failed') as failed
  from noted
 where position >= $2;

-- name: end_replay
-- A job that runs is over: 'finished' when nothing is pending, or 'stopped'. No row back: it was cancelled.
update inbox.replay
   set state = $2, finished_at = inbox.clock()
 where id = $1 and state = 'running'
returning id;

-- name: cancel_replay
-- Cancel a job that is not over: what is pending stays as it is. No row back: it is over.
update inbox.replay
   set state = 'cancelled', finished_at = inbox.clock(), cancelled_by = $2
 where id = $1 and state in ('running', 'stopped')
returning id;
