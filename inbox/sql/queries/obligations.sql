-- What messages owe to queues: copies and dead letters. Functions of these names stand in the migrations.

-- name: find_owed
-- What a consumer's messages owe, the longest owed first, after a position; without bodies.
select key, generation, state, changed_at, message_id, type, body_bytes from inbox.find_owed($1, $2, $3, $4, $5);

-- name: read_owed
-- The bytes of a message as it was found, and what is known of its end. No row back: it has changed meanwhile.
select consumer, source, message_id, type, body, properties, exchange, routing_key, traceparent, reason, error_class,
       finished_at
  from inbox.read_owed($1, $2, $3, $4, $5);

-- name: clear_owed
-- Say that an obligation is served, if the message is as it was found.
select inbox.clear_owed($1, $2, $3, $4, $5) as cleared;
