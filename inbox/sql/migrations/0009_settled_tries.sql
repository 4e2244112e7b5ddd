-- Tries of exhaustion records whose sessions were lost are settled by their process at once, as attempts are.

-- Record the end of a try whose session was lost, for the process that lost it: not charged. False: somebody holds the
-- record, and that may be the lost session, so come again. What was acknowledged, ended or begun anew is settled.
create function inbox.settle_try(p_id uuid, p_try uuid, p_max_attempts integer, p_max_aborts integer) returns boolean
    language plpgsql volatile set enable_seqscan = off
    as $$
declare
    x inbox.exhaustion;
begin
    call inbox.commit_durably();
    select * into x from inbox.exhaustion o where o.id = p_id for update skip locked;
    if not found then
        return not exists (
            select from inbox.exhaustion o
             where o.id = p_id and o.acknowledged_at is null and (o.try_ended or o.try_id = p_try));
    end if;
    if x.try_id = p_try and not x.try_ended and x.acknowledged_at is null then
        perform inbox.decide_try(x, x.tried_by, p_max_attempts, p_max_aborts);
    end if;
    return true;
end
$$;
