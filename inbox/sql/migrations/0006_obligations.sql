-- Obligations: copies that are owed to work queues, and dead letters. One republisher of each service serves them.
--
-- A flag is cleared after the broker's confirm, and only from the row as it was read before the publish. Whoever sets a
-- flag changes `changed_at`, so what was asked for in between is never taken for served. Clearing changes no state, so
-- it takes no message's lock; a clearing that a crash undoes costs a copy that is absorbed.

create index message_owes_copy on inbox.message (consumer, changed_at, key) where copy_needed;
create index message_owes_dead_letter on inbox.message (consumer, changed_at, key) where dead_letter_needed;

-- What a consumer's messages owe, the longest owed first, after a position: p_what is 'copy' or 'dead_letter'.
create function inbox.find_owed(
    p_what text, p_consumer text, p_after_at timestamptz, p_after_key uuid, p_limit integer
) returns table (
    key uuid, generation integer, state text, changed_at timestamptz, message_id text, type text, body_bytes integer)
    language plpgsql stable set enable_seqscan = off
    as $$
#variable_conflict use_column
begin
    if p_what = 'copy' then
        return query
        select m.key, m.generation, m.state, m.changed_at, m.message_id, m.type, octet_length(m.body)
          from inbox.message m
         where m.consumer = p_consumer and m.copy_needed and (m.changed_at, m.key) > (p_after_at, p_after_key)
         order by m.changed_at, m.key
         limit p_limit;
    else
        return query
        select m.key, m.generation, m.state, m.changed_at, m.message_id, m.type, octet_length(m.body)
          from inbox.message m
         where m.consumer = p_consumer and m.dead_letter_needed and (m.changed_at, m.key) > (p_after_at, p_after_key)
         order by m.changed_at, m.key
         limit p_limit;
    end if;
end
$$;

-- The bytes of a message that owes this yet, as it was when it was found, and what a dead letter says of its row.
create function inbox.read_owed(p_what text, p_key uuid, p_generation integer, p_state text, p_changed_at timestamptz)
    returns table (
        consumer text, source text, message_id text, type text, body bytea, properties bytea, exchange text,
        routing_key text, traceparent text, reason text, error_class text, finished_at timestamptz)
    language plpgsql stable set enable_seqscan = off
    as $$
#variable_conflict use_column
begin
    return query
    select m.consumer, m.source, m.message_id, m.type, m.body, m.properties, m.exchange, m.routing_key, m.traceparent,
           m.reason,
           (select a.error_class from inbox.attempt a where a.key = m.key and a.generation = m.generation
             order by a.number desc limit 1),
           m.finished_at
      from inbox.message m
     where m.key = p_key and m.generation = p_generation and m.state = p_state and m.changed_at = p_changed_at
       and case p_what when 'copy' then m.copy_needed else m.dead_letter_needed end;
end
$$;

-- Say that an obligation is served, if the message is as it was when it was found. False: it is not, and may owe again.
create function inbox.clear_owed(p_what text, p_key uuid, p_generation integer, p_state text, p_changed_at timestamptz)
    returns boolean
    language plpgsql volatile set enable_seqscan = off
    as $$
begin
    update inbox.message o
       set copy_needed = o.copy_needed and p_what <> 'copy',
           dead_letter_needed = o.dead_letter_needed and p_what <> 'dead_letter'
     where o.key = p_key and o.generation = p_generation and o.state = p_state and o.changed_at = p_changed_at
       and case p_what when 'copy' then o.copy_needed else o.dead_letter_needed end;
    return found;
end
$$;
