-- Exhaustion records: their delivery, and what operators ask and say about them.

-- name: due_exhaustions
-- A consumer's records that may be tried now, oldest first, after a position. Those that are being tried are among
-- them: whether their process lives is decided one by one.
select id, key, generation, exhausted_at
  from inbox.exhaustion
 where consumer = $1 and acknowledged_at is null and not stuck
   and (exhausted_at, id) > ($2, $3) and due_at <= (select inbox.clock())
 order by exhausted_at, id
 limit $4;

-- name: begin_try
-- Count a try of a record, if it may be tried now. Commits by itself, before the handler runs.
select verdict, tries from inbox.begin_try($1, $2, $3, $4, $5, $6, $7);

-- name: claim_exhaustion
-- Lock a record for the handler's transaction, by its whole identity and the try. No row back: the try is stale.
select id, key, generation, number, claim_id, consumer, source, message_id, type, reason, error_class, error_text,
       body, properties, exchange, routing_key, traceparent, exhausted_at, tries
  from inbox.exhaustion
 where id = $1 and key = $2 and generation = $3 and try_id = $4 and not try_ended and acknowledged_at is null
   for update skip locked;

-- name: end_try
-- Record a try without effects; no such try is IN001.
select stuck, tries, delay_s from inbox.end_try($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: settle_try
-- Record the end of a try whose session was lost. False: the lost session may still hold the record.
select inbox.settle_try($1, $2, $3, $4);

-- name: count_exhaustions
-- Unacknowledged records of each consumer.
select consumer, count(*) as records, count(*) filter (where stuck) as stuck
  from inbox.exhaustion
 where acknowledged_at is null and consumer = any ($1)
 group by consumer;

-- name: list_exhaustions
-- Records for operators, oldest first, after a position; null leaves a condition out.
select id, key, generation, number, claim_id, consumer, source, message_id, type, reason, error_class, error_text,
       octet_length(body) as body_bytes, first_seen_at, exhausted_at, tries, aborts, due_at, tried_by, try_error,
       acknowledged_at, acknowledged_by, state
  from inbox.exhaustion
 cross join lateral (
       select case when acknowledged_at is not null then 'acknowledged' when stuck then 'stuck'
                   when try_ended then 'waiting' else 'trying' end as state) named
 where ($1::text is null or consumer = $1)
   and (case when $2::text[] is null then acknowledged_at is null else state = any ($2) end)
   and ($3::uuid[] is null or id = any ($3))
   and ($4::uuid is null or key = $4)
   and (exhausted_at, id) > ($5, $6)
 order by exhausted_at, id
 limit $7;

-- name: acknowledge_exhaustions
-- Acknowledge records in an operator's name. One whose handler is running is left to it.
with asked as (select distinct unnest($1::uuid[]) as id),
free as (select o.id from inbox.exhaustion o join asked using (id) where o.acknowledged_at is null
            for update of o skip locked),
done as (update inbox.exhaustion o
            set acknowledged_at = inbox.clock(), acknowledged_by = $2, try_ended = true, stuck = false
           from free where o.id = free.id
         returning o.id)
select asked.id,
       case when done.id is not null then 'done' when o.id is null then 'missing'
            when o.acknowledged_at is not null then 'acknowledged' else 'busy' end as answer
  from asked left join done using (id) left join inbox.exhaustion o on o.id = asked.id;

-- name: retry_exhaustions
-- Let records be tried anew, from the first try on and at once; whether they are tried alone stays as it was.
with asked as (select distinct unnest($1::uuid[]) as id),
free as (select o.id from inbox.exhaustion o join asked using (id) where o.acknowledged_at is null
            for update of o skip locked),
done as (update inbox.exhaustion o
            set tries = 0, aborts = 0, stuck = false, due_at = inbox.clock()
           from free where o.id = free.id
         returning o.id)
select asked.id,
       case when done.id is not null then 'done' when o.id is null then 'missing'
            when o.acknowledged_at is not null then 'acknowledged' else 'busy' end as answer
  from asked left join done using (id) left join inbox.exhaustion o on o.id = asked.id;
