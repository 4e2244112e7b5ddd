-- Retention: what has ended is remembered for as long as its service says, and then removed, a little at a time.
--
-- Receipts belong to every service of the database, so they stay for as long as the service that wants them longest.
-- Messages are removed under their lock, which is tried and never waited for, like everything else that changes their
-- state; a row that somebody holds, or that still owes something, stays for a later round.

create table inbox.retention (
    service  text        primary key,
    receipts interval    not null,
    said_at  timestamptz not null,
    constraint retention_is_positive check (receipts > interval '0')
);

-- Look at a consumer's messages that ended longer ago than p_keep_s, in the order of their end, after a position; and
-- remove those that owe nothing: no copy, no dead letter, no exhaustion that nobody has acknowledged. Whoever reads such
-- a record may want to replay its message. Returns how many were seen and removed, and the last position.
create function inbox.remove_messages(
    p_consumer text, p_keep_s double precision, p_after_at timestamptz, p_after_key uuid, p_limit integer
) returns table (seen integer, removed integer, last_at timestamptz, last_key uuid)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    x        record;
    v_before timestamptz := inbox.clock() - make_interval(secs => p_keep_s);
begin
    seen := 0;
    removed := 0;
    for x in
        select m.key, m.finished_at
          from inbox.message m
         where m.consumer = p_consumer and m.finished_at < v_before
           and (m.finished_at, m.key) > (p_after_at, p_after_key)
         order by m.finished_at, m.key
         limit p_limit
    loop
        seen := seen + 1;
        last_at := x.finished_at;
        last_key := x.key;
        continue when not pg_try_advisory_xact_lock(inbox.lock_id(x.key));
        perform from inbox.message m
          where m.key = x.key and m.finished_at < v_before and not m.copy_needed and not m.dead_letter_needed
            and not exists (select from inbox.exhaustion e where e.key = m.key and e.acknowledged_at is null)
            for update skip locked;
        continue when not found;
        delete from inbox.message m where m.key = x.key;
        removed := removed + 1;
    end loop;
    return next;
end
$$;

-- Remove a consumer's records that were acknowledged longer ago than p_keep_s, the oldest first, and return how many.
create function inbox.remove_exhaustions(p_consumer text, p_keep_s double precision, p_limit integer) returns integer
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    v_before  timestamptz := inbox.clock() - make_interval(secs => p_keep_s);
    v_removed integer;
begin
    with past as (
           select e.id
             from inbox.exhaustion e
            where e.consumer = p_consumer and e.acknowledged_at < v_before
            order by e.acknowledged_at
            limit p_limit
              for update skip locked)
    delete from inbox.exhaustion e using past where e.id = past.id;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;

-- Remove what happened longer ago than p_keep_s to a consumer's messages that are not on record any more, the oldest
-- first, and return how much.
create function inbox.remove_history(p_consumer text, p_keep_s double precision, p_limit integer) returns integer
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    v_before  timestamptz := inbox.clock() - make_interval(secs => p_keep_s);
    v_removed integer;
begin
    with past as (
           select h.id
             from inbox.history h
            where h.consumer = p_consumer and h.at < v_before
              and not exists (select from inbox.message m where m.key = h.key)
            order by h.at
            limit p_limit
              for update of h skip locked)
    delete from inbox.history h using past where h.id = past.id;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;

-- Remove a service's replay jobs that were over longer ago than p_keep_s. A job may have any number of items, so those go
-- first, a few at a time, and then the job. Returns how many of both were removed.
create function inbox.remove_replays(p_service text, p_keep_s double precision, p_limit integer) returns integer
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    v_before  timestamptz := inbox.clock() - make_interval(secs => p_keep_s);
    v_removed integer;
    v_jobs    integer;
begin
    with past as (
           select i.replay_id, i.position
             from inbox.replay r
             join inbox.replay_item i on i.replay_id = r.id
            where r.service = p_service and r.created_at < v_before and r.finished_at < v_before
            limit p_limit
              for update of i skip locked)
    delete from inbox.replay_item i using past where i.replay_id = past.replay_id and i.position = past.position;
    get diagnostics v_removed = row_count;
    with past as (
           select r.id
             from inbox.replay r
            where r.service = p_service and r.created_at < v_before and r.finished_at < v_before
              and not exists (select from inbox.replay_item i where i.replay_id = r.id)
            limit p_limit - v_removed
              for update of r skip locked)
    delete from inbox.replay r using past where r.id = past.id;
    get diagnostics v_jobs = row_count;
    return v_removed + v_jobs;
end
$$;

-- How many messages of each consumer are on record and not at an end, counted up to its bound.
create function inbox.count_open(p_consumers text[], p_bounds integer[]) returns table (consumer text, number integer)
    language plpgsql stable set enable_seqscan = off
    as $$
#variable_conflict use_column
begin
    return query
    select asked.name, counted.number
      from unnest(p_consumers, p_bounds) as asked (name, bound)
     cross join lateral (
           select count(*)::integer as number
             from (select from inbox.message m
                    where m.consumer = asked.name and m.state in ('attempting', 'waiting')
                    limit asked.bound) found) counted;
end
$$;
