-- Exhaustion delivery: each record is handed to its consumer's `on_exhausted` handler until that has acknowledged it.
--
-- A try is counted and committed before the handler runs, so that one that dies is counted too. Then the handler's
-- transaction locks the record's row, and acknowledges it by record, key and try. Beginning a try gives the record
-- another try_id, so whatever is left of the one before finds its try_id gone, and writes nothing.
--
-- Locks: the record's row, never waited for. No statement here takes a message's lock beside it.

alter table inbox.exhaustion
    -- Tries that were nobody's fault: a lost session, a shutdown, a death in company. Bounded by themselves.
    add column aborts    integer not null default 0,
    -- The last try ran with nothing else in its process.
    add column try_alone boolean not null default false,
    -- The try after a death does.
    add column suspect   boolean not null default false,
    -- Out of tries, or rejected by its handler: it waits for an operator.
    add column stuck     boolean not null default false,
    add constraint exhaustion_counts_are_not_negative
        check (tries >= 0 and aborts >= 0),
    add constraint exhaustion_stuck_is_not_being_tried
        check (try_ended or not stuck);

create index exhaustion_deliverable on inbox.exhaustion (consumer, exhausted_at, id)
 where acknowledged_at is null and not stuck;

-- Decide about a try without an end, and return the record as it is then: unchanged while its process lives. A process
-- tries one record of a consumer at a time, so what it finds begun by itself has lost its session; the row is free, so
-- that session has ended. A death in company is not charged, since a neighbour may have caused it: the next try runs
-- alone, and then it is the record's own.
create function inbox.decide_try(
    x inbox.exhaustion, p_judge uuid, p_max_attempts integer, p_max_aborts integer
) returns inbox.exhaustion
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    v_owner   text := case when x.tried_by = p_judge then 'stopped' else inbox.owner_is(x.tried_by, p_judge) end;
    v_charged boolean := v_owner = 'dead' and x.try_alone;
begin
    if v_owner = 'alive' then
        return x;
    end if;
    x.tries := x.tries - case when v_charged or x.tries = 0 then 0 else 1 end;
    x.aborts := x.aborts + case when v_charged then 0 else 1 end;
    update inbox.exhaustion o
       set try_ended = true, tries = x.tries, aborts = x.aborts, suspect = o.suspect or v_owner = 'dead',
           stuck = x.tries >= p_max_attempts or x.aborts >= p_max_aborts,
           try_error = case v_owner when 'dead' then 'ProcessDied: the process ended without a word about this try'
                                    else 'SessionLost: this try was given up, or its session was lost' end
     where o.id = x.id and o.try_id = x.try_id and not o.try_ended and o.acknowledged_at is null
    returning * into strict x;
    return x;
end
$$;

-- Decide whether a record may be tried now and, if so, count the try. Verdicts: run, gone (acknowledged, stuck, or
-- somebody works on it), undecided (the last try's process lives), early, suspect (come again alone), stuck (just now).
create function inbox.begin_try(
    p_id uuid, p_try uuid, p_member uuid, p_alone boolean,
    p_max_attempts integer, p_max_aborts integer, p_pacing double precision[]
) returns table (verdict text, tries integer)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    x     inbox.exhaustion;
    v_now timestamptz := inbox.clock();
begin
    call inbox.commit_durably();
    select * into x from inbox.exhaustion o
     where o.id = p_id and o.acknowledged_at is null and not o.stuck
       for update skip locked;
    if not found then
        return query select 'gone', 0;
        return;
    end if;
    if not x.try_ended then
        x := inbox.decide_try(x, p_member, p_max_attempts, p_max_aborts);
        if not x.try_ended then
            return query select 'undecided', x.tries;
            return;
        end if;
    end if;
    if x.tries >= p_max_attempts or x.aborts >= p_max_aborts then
        update inbox.exhaustion o set stuck = true where o.id = x.id;
        return query select 'stuck', x.tries;
        return;
    end if;
    if x.due_at > v_now then
        return query select 'early', x.tries;
        return;
    end if;
    if x.suspect and not p_alone then
        return query select 'suspect', x.tries;
        return;
    end if;
    update inbox.exhaustion o
       set tries = o.tries + 1, try_id = p_try, tried_by = p_member, try_alone = p_alone, try_ended = false,
           due_at = v_now + make_interval(secs => inbox.pause_s(p_pacing, o.tries + o.aborts + 1))
     where o.id = x.id and o.try_ended and o.acknowledged_at is null
    returning * into strict x;
    return query select 'run', x.tries;
end
$$;

-- Record how a try ended without effects, and what follows: 'failed', 'rejected', or 'aborted', which is not charged.
-- The record is matched by its whole identity and the try; no match is IN001, and nothing is written.
create function inbox.end_try(
    p_id uuid, p_key uuid, p_generation integer, p_try uuid,
    p_outcome text, p_error text, p_after_s double precision,
    p_max_attempts integer, p_max_aborts integer, p_pacing double precision[]
) returns table (stuck boolean, tries integer, delay_s double precision)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    x         inbox.exhaustion;
    v_now     timestamptz := inbox.clock();
    v_aborted integer := case when p_outcome = 'aborted' then 1 else 0 end;
    v_delay   double precision;
begin
    call inbox.commit_durably();
    select * into x from inbox.exhaustion o
     where o.id = p_id and o.key = p_key and o.generation = p_generation and o.try_id = p_try
       and not o.try_ended and o.acknowledged_at is null
       for update;
    if not found then
        raise exception 'try % no longer owns exhaustion record %', p_try, p_id using errcode = 'IN001';
    end if;
    v_delay := greatest(inbox.pause_s(p_pacing, x.tries + x.aborts), coalesce(p_after_s, 0));
    x.tries := greatest(x.tries - v_aborted, 0);
    x.aborts := x.aborts + v_aborted;
    update inbox.exhaustion o
       set try_ended = true, try_error = p_error, tries = x.tries, aborts = x.aborts,
           suspect = o.suspect and v_aborted = 1, due_at = v_now + make_interval(secs => v_delay),
           stuck = p_outcome = 'rejected' or x.tries >= p_max_attempts or x.aborts >= p_max_aborts
     where o.id = p_id and o.try_id = p_try
    returning * into strict x;
    return query select x.stuck, x.tries, v_delay;
end
$$;

-- The acknowledgement of a try, in its handler's transaction, which has locked the record by its whole identity.
create procedure inbox.acknowledge_try(p_id uuid, p_key uuid, p_try uuid)
    language plpgsql set enable_seqscan = off
    as $$
begin
    call inbox.commit_durably();
    update inbox.exhaustion
       set acknowledged_at = inbox.clock(), acknowledged_by = 'on_exhausted',
           try_ended = true, try_error = null, suspect = false
     where id = p_id and key = p_key and try_id = p_try and not try_ended and acknowledged_at is null;
    if not found then
        raise exception 'try % no longer owns exhaustion record %', p_try, p_id using errcode = 'IN001';
    end if;
end
$$;
