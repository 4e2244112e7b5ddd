-- Messages as operators see them. Functions of these names stand in the migrations.

-- name: find_messages
-- Messages on record that a filter means, after a position, without their bytes.
select key, consumer, source, message_id, type, state, reason, generation, attempts, due_at, finished_at, first_seen_at,
       changed_at, error_class, body_bytes, kept_bytes, body_sha256, copy_needed, dead_letter_needed
  from inbox.find_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: count_messages
-- How many messages a filter means, by state.
select state, count(*) as messages
  from inbox.find_messages($1, $2, $3, $4, $5, $6, $7, null, null, $8)
 group by state
 order by state;

-- name: freeze_messages
-- What a filter means, as it stands at this moment: enough to change it later, if it still is so.
select key, consumer, message_id, state, generation
  from inbox.find_messages($1, $2, $3, $4, $5, $6, $7, null, null, $8);

-- name: named_messages
-- Every message that is known by a key or by the sender's id: by its row, its history, or a record of its exhaustion.
select key, consumer, source, message_id
  from (select key, consumer, source, message_id from inbox.message where key = $1 or message_id = $2
         union
        select key, consumer, source, message_id from inbox.history where key = $1 or message_id = $2
         union
        select key, consumer, source, message_id from inbox.exhaustion where key = $1 or message_id = $2) known
 where ($3::text is null or consumer = $3) and ($4::text is null or source = $4)
 order by consumer, source, message_id, key;

-- name: attempts_of
-- A message's attempts on record, in their order, and the processes that made them, as far as those are still known.
select a.generation, a.number, a.claim_id, a.outcome, a.charged, a.alone, a.started_at, a.finished_at, a.error_class,
       a.error_text, a.error_trace, a.member_id, p.host, p.pid, p.build
  from inbox.attempt a
  left join inbox.member p on p.id = a.member_id
 where a.key = $1
 order by a.generation, a.number;

-- name: history_of
-- What happened to a message beside its attempts, in its order.
select consumer, source, message_id, type, generation, event, was, by_whom, reason, replay_id, attempts, first_seen_at, at
  from inbox.history
 where key = $1
 order by id;

-- name: receipt_of
-- When a message was processed.
select max(processed_at) from inbox.receipt where key = $1;

-- name: body_of
-- A message's bytes, from its row or from the last record of its exhaustion; of one that was too large, the first.
select body
  from (select 0 as place, 0 as generation, body from inbox.message where key = $1
         union all
        select 1, generation, body from inbox.exhaustion where key = $1) kept
 order by place, generation desc
 limit 1;

-- name: discard_message
-- Discard a message as it was seen; the answer says whether that was done.
select inbox.discard_message($1, $2, $3, $4, $5);
