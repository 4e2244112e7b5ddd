-- Messages that are too large to be begun. Their bytes are in a queue for dead letters before anything is written here,
-- so nothing is owed for them.

-- Reject one of which nothing is on record. The caller holds the key's session lock, has been told so under it, and has
-- put the whole elsewhere.
create function inbox.reject_oversize(
    p_key uuid, p_consumer text, p_source text, p_message_id text, p_type text,
    p_body bytea, p_properties bytea, p_exchange text, p_routing_key text, p_traceparent text,
    p_whole_bytes integer, p_whole_sha256 bytea
) returns boolean
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    v_now timestamptz := inbox.clock();
begin
    call inbox.commit_durably();
    insert into inbox.message (key, consumer, source, message_id, type, state, reason, body, whole_bytes, whole_sha256,
                               properties, exchange, routing_key, traceparent, first_seen_at, changed_at, finished_at)
    values (p_key, p_consumer, p_source, p_message_id, p_type, 'rejected', 'too_large', p_body, p_whole_bytes,
            p_whole_sha256, p_properties, p_exchange, p_routing_key, p_traceparent, v_now, v_now, v_now);
    return true;
end
$$;
