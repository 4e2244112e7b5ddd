-- The inbox: receipts of processed messages, rows of messages that did not succeed at once, and the attempts
-- that were counted.
--
-- Who may write what: only the holder of a message's advisory lock (inbox.lock_id of its key) changes the
-- message's state. Lock order, for every statement of this product: the advisory lock, then the message row,
-- then its attempt rows.
--
-- Functions that read after they have waited for, or tried, the lock are VOLATILE: each of their statements
-- then sees what was committed before the lock was free. A STABLE function, or one statement doing both,
-- misses receipts.
--
-- They do without sequential scans: these tables are empty on most days, and a session keeps the plan that it made
-- then for the minutes in which they fill.

create schema inbox;

create table inbox.migration (
    number     integer     primary key,
    name       text        not null,
    checksum   text        not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- The one clock of everything that is stored. Tests replace it by one that they can move.
create function inbox.clock() returns timestamptz
    language sql volatile
    as $$ select clock_timestamp() $$;

-- 64 bits of the key under a seed of our own. A collision is a false "contended", which a retry resolves.
create function inbox.lock_id(p_key uuid) returns bigint
    language sql immutable parallel safe
    as $$ select uuid_hash_extended(p_key, 7310866437) $$;

-- One row per process start. A process is alive while its heartbeat is younger than the expiry it declared.
create table inbox.member (
    id           uuid        primary key,
    service      text        not null,
    build        text        not null,
    host         text        not null,
    pid          integer     not null,
    expiry       interval    not null,
    started_at   timestamptz not null,
    heartbeat_at timestamptz not null,
    -- Since when no heartbeat of this process has come later than its expiry after the one before.
    steady_since timestamptz not null,
    -- Consumers that this process holds paused, by key name: deliveries may be in its hands meanwhile.
    paused       text[]      not null default '{}',
    stopped_at   timestamptz
);

-- What is known of the process that owns an undecided attempt: 'stopped' in order, 'dead', or 'alive' as far as the
-- judge can tell. An outage of the database keeps every heartbeat away, and nobody dies of that. So only a steady
-- process may call another one dead: it has come through for at least as long as a living owner would have needed.
create function inbox.owner_is(p_owner uuid, p_judge uuid) returns text
    language plpgsql volatile
    as $$
declare
    v_now   timestamptz := inbox.clock();
    v_owner inbox.member;
    v_judge inbox.member;
begin
    if p_owner = p_judge then
        return 'alive';
    end if;
    select * into v_owner from inbox.member where id = p_owner;
    if v_owner.stopped_at is not null then
        return 'stopped';
    end if;
    select * into v_judge from inbox.member where id = p_judge;
    if v_owner.heartbeat_at + v_owner.expiry > v_now
       or v_judge.id is null
       or v_judge.heartbeat_at + v_judge.expiry <= v_now
       or v_judge.steady_since + coalesce(v_owner.expiry, v_judge.expiry) > v_now then
        return 'alive';
    end if;
    return 'dead';
end
$$;

-- Work that one process of a service does for all, such as republishing: held for a while and renewed, in database
-- time. Whatever a holder does is safe if two hold it.
create table inbox.duty (
    service    text        not null,
    name       text        not null,
    member_id  uuid        not null,
    held_until timestamptz not null,
    primary key (service, name)
);

-- The processed stamp: one insert, never updated. Few wide partitions, made ahead; there is no default
-- partition, so that one can always be attached and detached without a lock on the others.
create table inbox.receipt (
    key          uuid        not null,
    processed_at timestamptz not null default inbox.clock()
) partition by range (processed_at);

-- The attached partitions. Their bounds exist only as text, written as the session's settings say; so they are
-- written and read under settings of the function's own.
create function inbox.receipt_partitions() returns table (name text, lower timestamptz, upper timestamptz)
    language sql stable set datestyle = 'ISO' set timezone = 'UTC'
    as $$
    select c.relname,
           (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\)'))[1]::timestamptz,
           (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'inbox.receipt'::regclass and not i.inhdetachpending
$$;

create table inbox.message (
    key                uuid        primary key,
    consumer           text        not null,
    source             text        not null,
    message_id         text        not null,
    type               text        not null,
    state              text        not null,
    generation         integer     not null default 1,
    claim_id           uuid,
    due_at             timestamptz,
    reason             text,
    -- The attempt after a death runs with no other attempt in its process.
    suspect            boolean     not null default false,
    -- A death in company is free once per generation.
    free_death_spent   boolean     not null default false,
    -- Obligations, served by one republisher.
    copy_needed        boolean     not null default false,
    dead_letter_needed boolean     not null default false,
    body               bytea       not null,
    -- Of a message that was too large to be begun: its whole body, of which the one above is the beginning.
    whole_bytes        integer,
    whole_sha256       bytea,
    properties         bytea       not null,
    exchange           text        not null,
    routing_key        text        not null,
    traceparent        text,
    first_seen_at      timestamptz not null,
    changed_at         timestamptz not null,
    finished_at        timestamptz,
    -- How often the sweep has asked for a copy of a message that nobody brought, and when it last did.
    sweeps             integer     not null default 0,
    swept_at           timestamptz,
    constraint message_state_is_known
        check (state in ('attempting', 'waiting', 'exhausted', 'rejected', 'discarded')),
    constraint message_attempting_has_a_claim
        check ((state = 'attempting') = (claim_id is not null)),
    constraint message_waiting_has_a_due_time
        check ((state = 'waiting') = (due_at is not null)),
    constraint message_terminal_has_an_end
        check ((state in ('exhausted', 'rejected', 'discarded')) = (finished_at is not null)),
    constraint message_terminal_has_a_reason
        check (finished_at is null or reason is not null),
    constraint message_generation_is_positive
        check (generation > 0),
    constraint message_without_its_whole_body_has_ended
        check (case when whole_bytes is null then whole_sha256 is null
                    else whole_sha256 is not null and state in ('rejected', 'discarded')
                         and octet_length(body) <= whole_bytes end)
);

create index message_open on inbox.message (consumer, due_at) where state in ('attempting', 'waiting');
create index message_terminal on inbox.message (consumer, finished_at, key) where finished_at is not null;

-- One row per attempt on record; its claim_id fences every write about it.
create table inbox.attempt (
    claim_id    uuid        primary key,
    key         uuid        not null references inbox.message on delete cascade,
    generation  integer     not null,
    number      integer     not null,
    member_id   uuid        not null,
    alone       boolean     not null,
    outcome     text        not null,
    charged     boolean     not null,
    started_at  timestamptz not null,
    finished_at timestamptz,
    error_class text,
    error_text  text,
    error_trace text,
    constraint attempt_number_is_its_own
        unique (key, generation, number),
    constraint attempt_outcome_is_known
        check (outcome in ('started', 'failed', 'timed_out', 'crashed', 'aborted', 'rejected')),
    constraint attempt_started_is_undecided
        check ((outcome = 'started') = (finished_at is null)),
    constraint attempt_charge_fits_its_outcome
        check (case outcome when 'aborted' then not charged when 'rejected' then not charged
                            when 'crashed' then true else charged end)
);

-- One record per exhaustion, an obligation until it is acknowledged. It stands by itself: neither a replay nor
-- retention of the message takes it away, so it has the message's bytes too.
create table inbox.exhaustion (
    id              uuid        primary key default gen_random_uuid(),
    key             uuid        not null,
    generation      integer     not null,
    number          integer     not null,
    claim_id        uuid        not null,
    consumer        text        not null,
    source          text        not null,
    message_id      text        not null,
    type            text        not null,
    reason          text        not null,
    error_class     text,
    error_text      text,
    body            bytea       not null,
    properties      bytea       not null,
    exchange        text        not null,
    routing_key     text        not null,
    traceparent     text,
    first_seen_at   timestamptz not null,
    exhausted_at    timestamptz not null,
    -- Its delivery to the service. A try is counted before it runs; one that has no recorded end died.
    tries           integer     not null default 0,
    due_at          timestamptz not null,
    try_id          uuid,
    tried_by        uuid,
    try_ended       boolean     not null default true,
    try_error       text,
    acknowledged_at timestamptz,
    acknowledged_by text,
    constraint exhaustion_is_one_per_generation
        unique (key, generation),
    constraint exhaustion_acknowledgement_has_a_name
        check ((acknowledged_at is null) = (acknowledged_by is null))
);

create index exhaustion_unacknowledged on inbox.exhaustion (consumer, exhausted_at, id) where acknowledged_at is null;
create index exhaustion_acknowledged on inbox.exhaustion (consumer, acknowledged_at)
 where acknowledged_at is not null;

-- Hot path, first step: undo session locks that an earlier user of this session left, then try the key's lock for this
-- transaction and note the answer where look() finds it. Called before the claim's savepoint, so that ROLLBACK TO
-- keeps the lock.
create procedure inbox.lock(p_key uuid, p_claim uuid)
    language plpgsql
    as $$
begin
    perform pg_advisory_unlock_all();
    perform set_config('inbox.claim',
                       case when pg_try_advisory_xact_lock(inbox.lock_id(p_key)) then p_claim::text else '' end,
                       true);
end
$$;

-- Hot path, second step, a statement of its own: the verdict is the number of rows, which the command tag
-- tells. 0 run; 1 contended; 2 duplicate (a left-over row is deleted: commit); 3 a row is on record, so the
-- counted path decides.
create function inbox.look(p_key uuid, p_claim uuid) returns setof integer
    language plpgsql volatile rows 1 set enable_seqscan = off
    as $$
begin
    if current_setting('inbox.claim', true) is distinct from p_claim::text then
        return query select generate_series(1, 1);
    elsif exists (select from inbox.receipt where key = p_key) then
        delete from inbox.message where key = p_key;
        return query select generate_series(1, 2);
    elsif exists (select from inbox.message where key = p_key) then
        return query select generate_series(1, 3);
    end if;
end
$$;

-- Counted path: try the key's lock for the whole session. No row: held; one row: contended.
create function inbox.hold(p_key uuid) returns setof integer
    language plpgsql volatile rows 1
    as $$
begin
    perform pg_advisory_unlock_all();
    if not pg_try_advisory_lock(inbox.lock_id(p_key)) then
        return next 1;
    end if;
end
$$;

-- Whatever this transaction says about a message, somebody acts on it as soon as it has committed: a delivery is
-- acked, and the broker has no copy any more. So its commit survives a crash, whatever the session's setting says.
create procedure inbox.commit_durably()
    language plpgsql
    as $$
begin
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;

-- The processed stamp of a first delivery.
create procedure inbox.stamp(p_key uuid)
    language plpgsql
    as $$
begin
    call inbox.commit_durably();
    insert into inbox.receipt (key) values (p_key);
end
$$;

-- The processed stamp of a counted attempt: the row goes, by key and claim and state; nobody else's row is
-- ever deleted.
create procedure inbox.stamp_counted(p_key uuid, p_claim uuid)
    language plpgsql set enable_seqscan = off
    as $$
begin
    call inbox.commit_durably();
    delete from inbox.message where key = p_key and claim_id = p_claim and state = 'attempting';
    if not found then
        raise exception 'attempt % no longer owns message %', p_claim, p_key using errcode = 'IN001';
    end if;
    insert into inbox.receipt (key) values (p_key);
end
$$;

-- The pause, in seconds, after so many attempts: the last step repeats.
create function inbox.pause_s(p_pacing double precision[], p_attempts integer) returns double precision
    language sql immutable
    as $$ select p_pacing[greatest(1, least(p_attempts, cardinality(p_pacing)))] $$;

-- Remember that a message has become exhausted, by its last attempt on record; in the transaction that makes it so.
create procedure inbox.note_exhaustion(m inbox.message)
    language plpgsql set enable_seqscan = off
    as $$
begin
    insert into inbox.exhaustion (key, generation, number, claim_id, consumer, source, message_id, type, reason,
                                  error_class, error_text, body, properties, exchange, routing_key, traceparent,
                                  first_seen_at, exhausted_at, due_at)
    select m.key, m.generation, a.number, a.claim_id, m.consumer, m.source, m.message_id, m.type, m.reason,
           a.error_class, a.error_text, m.body, m.properties, m.exchange, m.routing_key, m.traceparent,
           m.first_seen_at, m.finished_at, m.finished_at
      from inbox.attempt a
     where a.key = m.key and a.generation = m.generation
     order by a.number desc
     limit 1;
    if not found then
        raise exception 'message % is exhausted without an attempt', m.key using errcode = 'IN002';
    end if;
end
$$;

-- Decide about an attempt without an outcome, whose message is locked and `attempting`, and return the message as it
-- is then: unchanged while its owner lives. An owner that stopped in order gave the attempt up; one that vanished died
-- with it, and is charged if nothing else ran in that process, or if this message has had its one free death in company.
create function inbox.decide_owner(
    m inbox.message, p_judge uuid, p_pacing double precision[], p_now timestamptz
) returns inbox.message
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    a       inbox.attempt;
    v_owner text;
begin
    select * into strict a from inbox.attempt o where o.claim_id = m.claim_id for update;
    v_owner := inbox.owner_is(a.member_id, p_judge);
    if v_owner = 'alive' then
        return m;
    end if;
    if v_owner = 'stopped' then
        update inbox.attempt o
           set outcome = 'aborted', charged = false, finished_at = p_now
         where o.claim_id = a.claim_id and o.outcome = 'started';
    else
        update inbox.attempt o
           set outcome = 'crashed', charged = a.alone or m.free_death_spent, finished_at = p_now,
               error_class = 'ProcessDied', error_text = 'the process ended without a word about this attempt'
         where o.claim_id = a.claim_id and o.outcome = 'started';
        m.suspect := true;
        m.free_death_spent := m.free_death_spent or not a.alone;
    end if;
    update inbox.message o
       set state = 'waiting', claim_id = null, changed_at = p_now, suspect = m.suspect,
           free_death_spent = m.free_death_spent,
           due_at = p_now + make_interval(secs => inbox.pause_s(p_pacing, a.number))
     where o.key = m.key and o.claim_id = a.claim_id and o.state = 'attempting'
    returning * into strict m;
    return m;
end
$$;

-- End a message that waits, is locked and has no budget left, and return it as it is then.
create function inbox.exhaust(m inbox.message, p_reason text, p_now timestamptz) returns inbox.message
    language plpgsql volatile set enable_seqscan = off
    as $$
begin
    update inbox.message o
       set state = 'exhausted', due_at = null, finished_at = p_now, changed_at = p_now, copy_needed = false,
           dead_letter_needed = true, reason = p_reason
     where o.key = m.key and o.state = 'waiting' and o.generation = m.generation
    returning * into strict m;
    call inbox.note_exhaustion(m);
    return m;
end
$$;

-- Counted path: decide about this copy and, if it may run, count the start. The caller holds the key's
-- session lock. Verdicts: run, duplicate, terminal, early (remaining_s), undecided, suspect (come again
-- alone), exhausted (just now), full (the consumer begins nothing new, and this message is not on record).
create function inbox.start_attempt(
    p_key uuid, p_claim uuid, p_member uuid, p_alone boolean, p_may_begin boolean,
    p_consumer text, p_source text, p_message_id text, p_type text,
    p_body bytea, p_properties bytea, p_exchange text, p_routing_key text, p_traceparent text,
    p_max_attempts integer, p_max_aborts integer, p_pacing double precision[], p_tolerance_s double precision
) returns table (verdict text, number integer, generation integer, remaining_s double precision, state text)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    m       inbox.message;
    v_now   timestamptz := inbox.clock();
    v_all   integer := 0;
    v_spent integer := 0;
    v_given integer := 0;
begin
    call inbox.commit_durably();
    if exists (select from inbox.receipt r where r.key = p_key) then
        delete from inbox.message d where d.key = p_key;
        return query select 'duplicate', 0, 0, 0::double precision, 'processed';
        return;
    end if;

    select * into m from inbox.message o where o.key = p_key for update;
    if found then
        if m.finished_at is not null then
            return query select 'terminal', 0, m.generation, 0::double precision, m.state;
            return;
        end if;

        if m.state = 'attempting' then
            m := inbox.decide_owner(m, p_member, p_pacing, v_now);
            if m.state = 'attempting' then
                return query
                    select 'undecided', o.number, m.generation, 0::double precision, m.state
                      from inbox.attempt o where o.claim_id = m.claim_id;
                return;
            end if;
        end if;

        select count(*), count(*) filter (where o.charged), count(*) filter (where o.outcome = 'aborted')
          into v_all, v_spent, v_given
          from inbox.attempt o where o.key = p_key and o.generation = m.generation;

        if v_spent >= p_max_attempts or v_given >= p_max_aborts then
            m := inbox.exhaust(m, case when v_spent >= p_max_attempts then 'attempts' else 'aborts' end, v_now);
            return query select 'exhausted', v_all, m.generation, 0::double precision, m.reason;
            return;
        end if;

        if m.due_at > v_now + make_interval(secs => p_tolerance_s) then
            return query select 'early', v_all, m.generation, extract(epoch from m.due_at - v_now)::double precision, m.state;
            return;
        end if;

        if m.suspect and not p_alone then
            return query select 'suspect', v_all, m.generation, 0::double precision, m.state;
            return;
        end if;

        update inbox.message o
           set state = 'attempting', claim_id = p_claim, due_at = null, changed_at = v_now, copy_needed = false,
               sweeps = 0, swept_at = null
         where o.key = p_key and o.state = 'waiting' and o.generation = m.generation
        returning * into strict m;
    elsif not p_may_begin then
        return query select 'full', 0, 0, 0::double precision, 'new';
        return;
    else
        insert into inbox.message (key, consumer, source, message_id, type, state, claim_id, body, properties, exchange,
                                   routing_key, traceparent, first_seen_at, changed_at)
        values (p_key, p_consumer, p_source, p_message_id, p_type, 'attempting', p_claim, p_body, p_properties, p_exchange,
                p_routing_key, p_traceparent, v_now, v_now)
        returning * into strict m;
    end if;

    insert into inbox.attempt (claim_id, key, generation, number, member_id, alone, outcome, charged, started_at)
    values (p_claim, p_key, m.generation, v_all + 1, p_member, p_alone, 'started', true, v_now);
    return query select 'run', v_all + 1, m.generation, 0::double precision, m.state;
end
$$;

-- Record how an attempt ended without effects, and what follows. Called in the claim's own transaction, under
-- the key's lock. p_first: nothing was on record before, so the row and its first attempt are written whole.
-- Otherwise the row is matched by key, claim and state; no match is IN001 and nothing is written.
create function inbox.record_outcome(
    p_key uuid, p_claim uuid, p_member uuid, p_alone boolean, p_first boolean,
    p_consumer text, p_source text, p_message_id text, p_type text,
    p_body bytea, p_properties bytea, p_exchange text, p_routing_key text, p_traceparent text,
    p_started_s double precision,
    p_outcome text, p_error_class text, p_error_text text, p_error_trace text, p_reason text,
    p_after_s double precision,
    p_max_attempts integer, p_max_aborts integer, p_pacing double precision[]
) returns table (state text, number integer, generation integer, delay_s double precision, reason text)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    m         inbox.message;
    v_now     timestamptz := inbox.clock();
    v_charged boolean := p_outcome in ('failed', 'timed_out');
    v_all     integer := 1;
    v_spent   integer := case when v_charged then 1 else 0 end;
    v_given   integer := case when p_outcome = 'aborted' then 1 else 0 end;
    v_gen     integer := 1;
    v_delay   double precision := 0;
    v_state   text;
    v_reason  text;
begin
    call inbox.commit_durably();
    if not p_first then
        update inbox.attempt o
           set outcome = p_outcome, charged = v_charged, finished_at = v_now,
               error_class = p_error_class, error_text = p_error_text, error_trace = p_error_trace
          from inbox.message own
         where o.claim_id = p_claim and o.outcome = 'started'
           and own.key = p_key and own.claim_id = p_claim and own.state = 'attempting'
        returning o.generation, o.number into v_gen, v_all;
        if not found then
            raise exception 'attempt % no longer owns message %', p_claim, p_key using errcode = 'IN001';
        end if;
        select count(*) filter (where o.charged), count(*) filter (where o.outcome = 'aborted')
          into v_spent, v_given
          from inbox.attempt o where o.key = p_key and o.generation = v_gen;
    end if;

    if p_outcome = 'rejected' then
        v_state := 'rejected';
        v_reason := p_reason;
    elsif v_spent >= p_max_attempts then
        v_state := 'exhausted';
        v_reason := 'attempts';
    elsif v_given >= p_max_aborts then
        v_state := 'exhausted';
        v_reason := 'aborts';
    else
        v_state := 'waiting';
        v_delay := greatest(inbox.pause_s(p_pacing, v_all), coalesce(p_after_s, 0));
    end if;

    if p_first then
        insert into inbox.message (key, consumer, source, message_id, type, state, due_at, reason, dead_letter_needed,
                                   body, properties, exchange, routing_key, traceparent, first_seen_at, changed_at, finished_at)
        values (p_key, p_consumer, p_source, p_message_id, p_type, v_state,
                case when v_state = 'waiting' then v_now + make_interval(secs => v_delay) end,
                v_reason, v_state <> 'waiting',
                p_body, p_properties, p_exchange, p_routing_key, p_traceparent, v_now, v_now,
                case when v_state <> 'waiting' then v_now end)
        returning * into strict m;
        insert into inbox.attempt (claim_id, key, generation, number, member_id, alone, outcome, charged, started_at,
                                   finished_at, error_class, error_text, error_trace)
        values (p_claim, p_key, 1, 1, p_member, p_alone, p_outcome, v_charged, v_now - make_interval(secs => p_started_s),
                v_now, p_error_class, p_error_text, p_error_trace);
    else
        update inbox.message o
           set state = v_state, claim_id = null, changed_at = v_now, reason = v_reason,
               due_at = case when v_state = 'waiting' then v_now + make_interval(secs => v_delay) end,
               finished_at = case when v_state <> 'waiting' then v_now end,
               dead_letter_needed = o.dead_letter_needed or v_state <> 'waiting',
               suspect = o.suspect and p_outcome = 'aborted'
         where o.key = p_key and o.claim_id = p_claim and o.state = 'attempting'
        returning * into m;
        if not found then
            raise exception 'attempt % no longer owns message %', p_claim, p_key using errcode = 'IN001';
        end if;
    end if;
    if v_state = 'exhausted' then
        call inbox.note_exhaustion(m);
    end if;
    return query select v_state, v_all, v_gen, v_delay, v_reason;
end
$$;

-- An owner settles an attempt whose session it lost. The lock is free only when that session has ended, and
-- so the attempt's fate is known: what is still undecided was rolled back. False: the lock is held, come
-- again. Somebody may have taken the owner for dead meanwhile: then the charge is taken back, and the free death
-- with it, but not from a message that has ended: what ended it stays as it was judged.
create function inbox.settle_debt(p_key uuid, p_claim uuid, p_pacing double precision[]) returns boolean
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    m     inbox.message;
    v_now timestamptz := inbox.clock();
    v_all integer;
begin
    if not pg_try_advisory_xact_lock(inbox.lock_id(p_key)) then
        return false;
    end if;
    call inbox.commit_durably();
    if exists (select from inbox.receipt r where r.key = p_key) then
        delete from inbox.message o where o.key = p_key;
        return true;
    end if;
    select * into m from inbox.message o where o.key = p_key and o.finished_at is null for update;
    if not found then
        return true;
    end if;
    update inbox.attempt o
       set outcome = 'aborted', charged = false, finished_at = v_now,
           error_class = 'SessionLost', error_text = 'the database session ended under the attempt'
     where o.claim_id = p_claim and o.generation = m.generation and o.outcome in ('started', 'crashed')
    returning o.number into v_all;
    if found then
        update inbox.message o
           set suspect = o.suspect and deaths.happened, free_death_spent = deaths.were_free
          from (select count(*) > 0 as happened, count(*) filter (where not a.charged) > 0 as were_free
                  from inbox.attempt a
                 where a.key = p_key and a.generation = m.generation and a.outcome = 'crashed') deaths
         where o.key = p_key;
        update inbox.message o
           set state = 'waiting', claim_id = null, changed_at = v_now,
               due_at = v_now + make_interval(secs => inbox.pause_s(p_pacing, v_all))
         where o.key = p_key and o.claim_id = p_claim and o.state = 'attempting';
    end if;
    return true;
end
$$;
