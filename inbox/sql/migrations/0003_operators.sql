-- What operators do: look for messages, replay them, discard them, and read what happened to one.
--
-- A replay or a discard is one transaction for each message, under the message's lock, which is tried and never waited
-- for: state, history and the job's item change together or not at all. Each matches key, generation and from-state.
-- Lock order: the message's advisory lock, the job, its item, the message row.

-- What happened to messages beside their attempts. It survives the message's row.
create table inbox.history (
    id            bigint      generated always as identity primary key,
    key           uuid        not null,
    consumer      text        not null,
    source        text        not null,
    message_id    text        not null,
    type          text        not null,
    generation    integer     not null,
    event         text        not null,
    -- The state that the message left.
    was           text        not null,
    by_whom       text,
    reason        text,
    replay_id     uuid,
    -- Of a message that was processed in the end: its attempts, whose rows went with it.
    attempts      jsonb,
    first_seen_at timestamptz not null,
    at            timestamptz not null,
    constraint history_event_is_known
        check (event in ('replayed', 'discarded', 'processed')),
    constraint history_of_operators_has_a_name_and_a_reason
        check (event = 'processed' or (by_whom is not null and reason is not null)),
    constraint history_of_a_processed_message_has_its_attempts
        check ((event = 'processed') = (attempts is not null))
);

create index history_key on inbox.history (key, id);
create index history_named on inbox.history (message_id);
create index history_at on inbox.history (at);

-- A replay job. The set of its items is frozen when it is made.
create table inbox.replay (
    id           uuid             primary key,
    service      text             not null,
    reason       text             not null,
    by_whom      text             not null,
    -- What the items were chosen by, for people.
    chosen_by    jsonb            not null,
    -- Messages a second; null: as fast as it goes.
    rate         double precision,
    -- Stop when more than this share of the replayed messages has failed again.
    stop_ratio   double precision,
    state        text             not null default 'running',
    -- Who runs it, or ran it last: the job's session lock says whether somebody does.
    runner       text,
    cancelled_by text,
    created_at   timestamptz      not null default inbox.clock(),
    finished_at  timestamptz,
    constraint replay_state_is_known
        check (state in ('running', 'finished', 'cancelled', 'stopped')),
    constraint replay_that_runs_has_no_end
        check ((state = 'running') = (finished_at is null)),
    constraint replay_cancelled_has_a_name
        check ((state = 'cancelled') = (cancelled_by is not null)),
    constraint replay_rate_is_positive
        check (rate > 0),
    constraint replay_stop_ratio_is_a_share
        check (stop_ratio >= 0 and stop_ratio < 1)
);

create index replay_made on inbox.replay (service, created_at, id);

create table inbox.replay_item (
    replay_id  uuid        not null references inbox.replay on delete cascade,
    position   integer     not null,
    key        uuid        not null,
    -- The generation that is replayed; the message's next one is this job's.
    generation integer     not null,
    consumer   text        not null,
    message_id text        not null,
    outcome    text        not null default 'pending',
    detail     text,
    -- What became of a replayed message, once that is known.
    fate       text,
    at         timestamptz,
    primary key (replay_id, position),
    constraint replay_item_outcome_is_known
        check (outcome in ('pending', 'replayed', 'skipped', 'failed')),
    constraint replay_item_pending_has_no_time
        check ((outcome = 'pending') = (at is null)),
    constraint replay_item_fate_is_known
        check (fate in ('processed', 'failed')),
    constraint replay_item_fate_is_of_a_replayed_one
        check (fate is null or outcome = 'replayed')
);

create index replay_item_undecided on inbox.replay_item (replay_id) where outcome = 'replayed' and fate is null;

-- For listing and choosing: in the order of the last change, all or one consumer's, and by the sender's id.
create index message_changed on inbox.message (changed_at, key);
create index message_changed_of_consumer on inbox.message (consumer, changed_at, key);
create index message_named on inbox.message (message_id);
create index exhaustion_named on inbox.exhaustion (message_id);

-- Messages on record that a filter means, the one whose last change is oldest first, after a position. Null leaves a
-- condition out. An error class is that of the last attempt, whole or without its module. Each call is planned for what
-- it asks for: one plan for all filters would fit none.
create function inbox.find_messages(
    p_consumer text, p_states text[], p_types text[], p_error_classes text[],
    p_since timestamptz, p_until timestamptz, p_keys uuid[],
    p_after_at timestamptz, p_after_key uuid, p_limit integer
) returns table (
    key uuid, consumer text, source text, message_id text, type text, state text, reason text, generation integer,
    attempts integer, due_at timestamptz, finished_at timestamptz, first_seen_at timestamptz, changed_at timestamptz,
    error_class text, body_bytes integer, kept_bytes integer, body_sha256 text, copy_needed boolean,
    dead_letter_needed boolean
)
    language plpgsql stable set plan_cache_mode = force_custom_plan set enable_seqscan = off
    as $$
#variable_conflict use_column
begin
    return query
    select m.key, m.consumer, m.source, m.message_id, m.type, m.state, m.reason, m.generation,
           case when last.generation = m.generation then last.number else 0 end,
           m.due_at, m.finished_at, m.first_seen_at, m.changed_at,
           last.error_class, coalesce(m.whole_bytes, octet_length(m.body)), octet_length(m.body),
           encode(m.whole_sha256, 'hex'), m.copy_needed, m.dead_letter_needed
      from inbox.message m
      left join lateral (
           select a.generation, a.number, a.error_class
             from inbox.attempt a
            where a.key = m.key
            order by a.generation desc, a.number desc
            limit 1) last on true
     where (p_consumer is null or m.consumer = p_consumer)
       and (p_states is null or m.state = any (p_states))
       and (p_types is null or m.type = any (p_types))
       and (p_error_classes is null or last.error_class = any (p_error_classes)
            or regexp_replace(last.error_class, '^.*\.', '') = any (p_error_classes))
       and (p_since is null or m.changed_at >= p_since)
       and (p_until is null or m.changed_at < p_until)
       and (p_keys is null or m.key = any (p_keys))
       and (p_after_at is null or (m.changed_at, m.key) > (p_after_at, p_after_key))
     order by m.changed_at, m.key
     limit p_limit;
end
$$;

-- Why a message that has ended cannot be replayed; null: it can.
create function inbox.not_replayable(m inbox.message) returns text
    language sql immutable
    as $$
    select case when m.whole_bytes is not null
                then format('it is too large: %s of its %s bytes are on record', octet_length(m.body), m.whole_bytes) end
    $$;

-- The processed stamp of a counted attempt: the row goes, by key and claim and state; nobody else's row is ever
-- deleted. The attempts go with it, so those of a message that was not processed at once are kept in its history.
create or replace procedure inbox.stamp_counted(p_key uuid, p_claim uuid)
    language plpgsql set enable_seqscan = off
    as $$
begin
    call inbox.commit_durably();
    insert into inbox.history (key, consumer, source, message_id, type, generation, event, was, attempts, first_seen_at, at)
    select m.key, m.consumer, m.source, m.message_id, m.type, m.generation, 'processed', m.state, kept.attempts,
           m.first_seen_at, kept.at
      from inbox.message m
     cross join lateral (
           select now.at, count(*) as number,
                  jsonb_agg(jsonb_build_object(
                      'generation', a.generation, 'number', a.number, 'claim_id', a.claim_id,
                      'outcome', case a.claim_id when p_claim then 'processed' else a.outcome end,
                      'charged', a.charged and a.claim_id <> p_claim, 'alone', a.alone, 'started_at', a.started_at,
                      'finished_at', case a.claim_id when p_claim then now.at else a.finished_at end,
                      'error_class', a.error_class, 'error_text', left(a.error_text, 500), 'error_trace', null,
                      'member_id', a.member_id, 'host', p.host, 'pid', p.pid, 'build', p.build)
                      order by a.generation, a.number) as attempts
             from (select inbox.clock() as at) now
             join inbox.attempt a on a.key = m.key
             left join inbox.member p on p.id = a.member_id
            group by now.at) kept
     where m.key = p_key and m.claim_id = p_claim and m.state = 'attempting' and kept.number > 1;
    delete from inbox.message where key = p_key and claim_id = p_claim and state = 'attempting';
    if not found then
        raise exception 'attempt % no longer owns message %', p_claim, p_key using errcode = 'IN001';
    end if;
    insert into inbox.receipt (key) values (p_key);
end
$$;

-- What an operator did to a message, in the transaction that does it. The message is as it was before.
create procedure inbox.note_operation(
    m inbox.message, p_event text, p_by_whom text, p_reason text, p_replay uuid, p_at timestamptz
)
    language plpgsql
    as $$
begin
    insert into inbox.history (key, consumer, source, message_id, type, generation, event, was, by_whom, reason,
                               replay_id, first_seen_at, at)
    values (m.key, m.consumer, m.source, m.message_id, m.type, m.generation, p_event, m.state, p_by_whom, p_reason,
            p_replay, m.first_seen_at, p_at);
end
$$;

-- The session lock of whoever runs a job.
create function inbox.replay_lock_id(p_replay uuid) returns bigint
    language sql immutable parallel safe
    as $$ select uuid_hash_extended(p_replay, 7310866439) $$;

-- Replay one item of a job that runs: the message waits in a new generation, due at once, and its copy is owed. Outcomes:
-- replayed and skipped are those of the item, now or before; contended (somebody has the message's lock: come again) and
-- halted (the job does not run) leave it pending. The job's row is held meanwhile, so that once a job is cancelled
-- nothing of it is replayed any more.
create function inbox.replay_next(p_replay uuid, p_position integer) returns table (outcome text, detail text)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    v_key    uuid := (select i.key from inbox.replay_item i where i.replay_id = p_replay and i.position = p_position);
    r        inbox.replay;
    i        inbox.replay_item;
    m        inbox.message;
    v_now    timestamptz := inbox.clock();
    v_detail text;
begin
    if not pg_try_advisory_xact_lock(inbox.lock_id(v_key)) then
        return query select 'contended', null::text;
        return;
    end if;
    call inbox.commit_durably();
    select * into strict r from inbox.replay o where o.id = p_replay for share;
    if r.state <> 'running' then
        return query select 'halted', r.state;
        return;
    end if;
    select * into strict i from inbox.replay_item o
     where o.replay_id = p_replay and o.position = p_position for update;
    if i.outcome <> 'pending' then
        return query select i.outcome, i.detail;
        return;
    end if;

    select * into m from inbox.message o where o.key = i.key for update;
    v_detail := case
        when exists (select from inbox.receipt c where c.key = i.key) then 'it was processed meanwhile'
        when m.key is null then 'it is not on record any more'
        when m.generation <> i.generation then format('it was replayed meanwhile, and is %s', m.state)
        when m.state not in ('exhausted', 'rejected') then format('it is %s', m.state)
        else inbox.not_replayable(m) end;
    if v_detail is null then
        update inbox.message o
           set state = 'waiting', generation = o.generation + 1, due_at = v_now, finished_at = null, reason = null,
               changed_at = v_now, copy_needed = true, dead_letter_needed = false, free_death_spent = false,
               sweeps = 0, swept_at = null
         where o.key = i.key and o.generation = i.generation and o.state in ('exhausted', 'rejected');
        call inbox.note_operation(m, 'replayed', r.by_whom, r.reason, r.id, v_now);
    end if;
    update inbox.replay_item o
       set outcome = case when v_detail is null then 'replayed' else 'skipped' end, detail = v_detail, at = v_now
     where o.replay_id = p_replay and o.position = p_position and o.outcome = 'pending'
    returning * into strict i;
    return query select i.outcome, i.detail;
end
$$;

-- What became of a message in a generation that a replay began: processed, failed (an attempt was charged or rejected,
-- or the message has ended or gone without a receipt), or null while it is not known. One snapshot of everything.
create function inbox.replay_fate(p_key uuid, p_generation integer) returns text
    language plpgsql stable set enable_seqscan = off
    as $$
begin
    return case
        when exists (select from inbox.receipt c where c.key = p_key) then 'processed'
        when exists (select from inbox.attempt a
                      where a.key = p_key and a.generation = p_generation
                        and (a.outcome = 'rejected' or (a.charged and a.outcome <> 'started'))) then 'failed'
        when exists (select from inbox.message m
                      where m.key = p_key and m.generation = p_generation and m.finished_at is null) then null
        else 'failed' end;
end
$$;

-- Discard a message as it was seen: a late copy of it is absorbed, and what was owed for it is owed no more. Answers:
-- discarded, contended (come again), missing, processed, changed (its state or generation is another one), attempting.
create function inbox.discard_message(p_key uuid, p_generation integer, p_state text, p_by_whom text, p_reason text)
    returns text
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    m     inbox.message;
    v_now timestamptz := inbox.clock();
begin
    if not pg_try_advisory_xact_lock(inbox.lock_id(p_key)) then
        return 'contended';
    end if;
    call inbox.commit_durably();
    if exists (select from inbox.receipt c where c.key = p_key) then
        return 'processed';
    end if;
    select * into m from inbox.message o where o.key = p_key for update;
    if not found then
        return 'missing';
    elsif m.state = 'attempting' then
        return 'attempting';
    elsif m.state <> p_state or m.generation <> p_generation or m.state not in ('waiting', 'exhausted', 'rejected') then
        return 'changed';
    end if;
    update inbox.message o
       set state = 'discarded', due_at = null, finished_at = v_now, changed_at = v_now, reason = p_reason,
           copy_needed = false, dead_letter_needed = false
     where o.key = p_key and o.generation = p_generation and o.state = p_state;
    call inbox.note_operation(m, 'discarded', p_by_whom, p_reason, null, v_now);
    return 'discarded';
end
$$;
