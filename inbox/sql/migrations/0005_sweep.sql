-- The sweep: what no copy comes to decide, or to try again.
--
-- An attempt whose process is gone is judged as the next copy of its message would judge it. A message that waits, and
-- whose copy the broker has lost, is given another one. That it is lost nobody can see over AMQP, so whoever asks for it
-- decides when; a copy that was not needed is absorbed.
--
-- One message is one transaction, under its lock, which is tried and never waited for. What has changed since it was
-- found is left as it is.

-- Heartbeats change no column of it.
create index member_running on inbox.member (service) where stopped_at is null;

-- Whether a process of the service that lives holds the consumer paused: deliveries may be in its hands then.
create function inbox.is_paused(p_service text, p_consumer text) returns boolean
    language plpgsql stable set enable_seqscan = off
    as $$
declare
    v_now timestamptz := inbox.clock();
begin
    return exists (
        select from inbox.member m
         where m.service = p_service and m.stopped_at is null and m.heartbeat_at + m.expiry > v_now
           and p_consumer = any (m.paused));
end
$$;

-- A consumer's attempts without an outcome whose process has stopped or died, as far as the judge can tell, after a key.
create function inbox.find_ownerless(p_consumer text, p_judge uuid, p_after_key uuid, p_limit integer)
    returns table (key uuid, claim_id uuid, message_id text, type text)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
begin
    return query
    select m.key, m.claim_id, m.message_id, m.type
      from inbox.message m
      join inbox.attempt a on a.claim_id = m.claim_id
     where m.consumer = p_consumer and m.state = 'attempting' and m.due_at is null and m.key > p_after_key
       and inbox.owner_is(a.member_id, p_judge) <> 'alive'
     order by m.key
     limit p_limit;
end
$$;

-- Judge such an attempt. Verdicts: contended (somebody has the message's lock), gone (it is decided), undecided (its
-- process lives, after all), waiting (by its pacing), exhausted (that was the budget).
create function inbox.judge_ownerless(
    p_key uuid, p_claim uuid, p_judge uuid, p_max_attempts integer, p_max_aborts integer, p_pacing double precision[]
) returns table (verdict text, number integer)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    m       inbox.message;
    v_now   timestamptz := inbox.clock();
    v_all   integer;
    v_spent integer;
    v_given integer;
begin
    if not pg_try_advisory_xact_lock(inbox.lock_id(p_key)) then
        return query select 'contended', 0;
        return;
    end if;
    call inbox.commit_durably();
    if exists (select from inbox.receipt r where r.key = p_key) then
        delete from inbox.message d where d.key = p_key;
        return query select 'gone', 0;
        return;
    end if;
    select * into m from inbox.message o
     where o.key = p_key and o.claim_id = p_claim and o.state = 'attempting' for update;
    if not found then
        return query select 'gone', 0;
        return;
    end if;
    m := inbox.decide_owner(m, p_judge, p_pacing, v_now);
    select count(*), count(*) filter (where a.charged), count(*) filter (where a.outcome = 'aborted')
      into v_all, v_spent, v_given
      from inbox.attempt a where a.key = p_key and a.generation = m.generation;
    if m.state = 'attempting' then
        return query select 'undecided', v_all;
        return;
    end if;
    if v_spent >= p_max_attempts or v_given >= p_max_aborts then
        m := inbox.exhaust(m, case when v_spent >= p_max_attempts then 'attempts' else 'aborts' end, v_now);
    end if;
    return query select m.state, v_all;
end
$$;

-- From when on a message that waits may be given a copy, if each wait after the first is twice as long as the one before.
create function inbox.sweep_at(m inbox.message, p_wait_s double precision) returns timestamptz
    language sql immutable
    as $$ select greatest(m.due_at, m.swept_at) + make_interval(secs => p_wait_s * 2 ^ least(m.sweeps, 10)) $$;

-- A consumer's messages that wait, are so much past their time and have no copy on its way to them, after a position.
create function inbox.find_stranded(
    p_consumer text, p_wait_s double precision, p_after_due timestamptz, p_after_key uuid, p_limit integer
) returns table (key uuid, generation integer, due_at timestamptz, message_id text)
    language plpgsql volatile set enable_seqscan = off
    as $$
#variable_conflict use_column
declare
    v_now timestamptz := inbox.clock();
begin
    return query
    select m.key, m.generation, m.due_at, m.message_id
      from inbox.message m
     where m.consumer = p_consumer and m.state = 'waiting' and not m.copy_needed
       and m.due_at < v_now - make_interval(secs => p_wait_s) and inbox.sweep_at(m, p_wait_s) < v_now
       and (m.due_at, m.key) > (p_after_due, p_after_key)
     order by m.due_at, m.key
     limit p_limit;
end
$$;

-- Ask for a copy of such a message. Verdicts: contended, gone (it is not so any more), copy_needed.
create function inbox.mark_stranded(p_key uuid, p_generation integer, p_wait_s double precision) returns text
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    v_now timestamptz := inbox.clock();
begin
    if not pg_try_advisory_xact_lock(inbox.lock_id(p_key)) then
        return 'contended';
    end if;
    call inbox.commit_durably();
    if exists (select from inbox.receipt r where r.key = p_key) then
        delete from inbox.message d where d.key = p_key;
        return 'gone';
    end if;
    update inbox.message m
       set copy_needed = true, sweeps = m.sweeps + 1, swept_at = v_now, changed_at = v_now
     where m.key = p_key and m.generation = p_generation and m.state = 'waiting' and not m.copy_needed
       and inbox.sweep_at(m, p_wait_s) < v_now;
    return case when found then 'copy_needed' else 'gone' end;
end
$$;
