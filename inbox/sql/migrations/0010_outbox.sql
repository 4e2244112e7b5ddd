-- The outbox: events that were staged in the transactions whose effects they tell of, and what became of each.
--
-- An event is staged and then told by a relay, which publishes it outside of any transaction. 'sent': the broker has
-- confirmed it and has not given it back. 'waiting': it has been put off, or is meant for later, and is due at a time.
-- 'failed': no repetition would help. An event with a key holds back the later ones of its key while it is not sent.
--
-- Ids are in the order of staging, and not of commits: a relay that remembers how far it has read must look again for
-- what was not visible then. Those rows belong to transactions that its snapshot knew as running, or did not know yet;
-- for that, a transaction is given its xid before it is given an id. So whoever sees an event knows that every lower id
-- belongs to a transaction that had begun to write by then.

create sequence inbox.event_id as bigint cache 1;

-- Relays share a service's events by slots. One key has one slot, for good: the number is part of the schema.
create function inbox.slot(p_key text, p_id bigint) returns smallint
    language sql immutable parallel safe
    as $$ select (case when p_key is null then p_id else hashtextextended(p_key, 7310866439) end & 31)::smallint $$;

create table inbox.event (
    id          bigint      not null,
    xid         xid8        not null,
    service     text        not null,
    slot        smallint    not null,
    -- What its order is about; events without one have none.
    key         text,
    message_id  text        not null,
    type        text        not null,
    exchange    text        not null,
    routing_key text        not null,
    -- As they will be on the wire, so that each repetition is the same message.
    properties  bytea       not null,
    body        bytea       not null,
    -- The consumer and the message whose attempt staged it, if it was one.
    consumer    text,
    cause       uuid,
    staged_at   timestamptz not null,
    state       text        not null,
    due_at      timestamptz,
    -- How often it was published in vain, for a reason of its own.
    tries       integer     not null default 0,
    problem     text,
    finished_at timestamptz,
    primary key (id, staged_at),
    constraint event_state_is_known
        check (state in ('staged', 'waiting', 'sent', 'failed', 'discarded')),
    constraint event_waiting_has_a_due_time
        check ((state = 'waiting') = (due_at is not null)),
    constraint event_finished_has_an_end
        check ((state in ('sent', 'discarded')) = (finished_at is not null)),
    constraint event_failed_has_a_problem
        check (state <> 'failed' or problem is not null)
) partition by range (staged_at);

-- All of them are small: a row leaves them when it is sent. How far each is read never depends on what was sent before.
create index event_unread on inbox.event (service, id) where state = 'staged';
create index event_of_transaction on inbox.event (xid, id) where state = 'staged';
create index event_of_key on inbox.event (service, key, id)
    where state in ('staged', 'waiting', 'failed') and key is not null;
create index event_due on inbox.event (service, due_at, id) where state = 'waiting';
create index event_failed on inbox.event (service, id) where state = 'failed';

-- The attached partitions of a table, of receipts or of events. Their bounds exist only as text, written as the session's
-- settings say; so they are written and read under settings of the function's own.
drop function inbox.receipt_partitions();
create function inbox.partitions_of(p_table name) returns table (name text, lower timestamptz, upper timestamptz)
    language sql stable set datestyle = 'ISO' set timezone = 'UTC'
    as $$
    select c.relname,
           (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\)'))[1]::timestamptz,
           (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz
      from pg_inherits i
      join pg_class t on t.oid = i.inhparent
      join pg_class c on c.oid = i.inhrelid
     where t.relname = p_table and t.relnamespace = 'inbox'::regnamespace and not i.inhdetachpending
$$;

-- Stage an event in the caller's transaction and return its id. With a delay it waits from the start.
create function inbox.stage_event(
    p_service text, p_key text, p_message_id text, p_type text, p_exchange text, p_routing_key text,
    p_properties bytea, p_body bytea, p_consumer text, p_cause uuid, p_delay_s double precision
) returns bigint
    language plpgsql volatile
    as $$
declare
    v_xid xid8        := pg_current_xact_id();
    v_id  bigint      := nextval('inbox.event_id');
    v_now timestamptz := inbox.clock();
begin
    insert into inbox.event (
        id, xid, service, slot, key, message_id, type, exchange, routing_key, properties, body, consumer, cause,
        staged_at, state, due_at
    ) values (
        v_id, v_xid, p_service, inbox.slot(p_key, v_id), p_key, p_message_id, p_type, p_exchange, p_routing_key,
        p_properties, p_body, p_consumer, p_cause, v_now,
        case when p_delay_s is null then 'staged' else 'waiting' end, v_now + make_interval(secs => p_delay_s)
    );
    return v_id;
end
$$;

-- Make a role the owner of the schema and of all that is in it, sequences too.
create or replace procedure inbox.hand_over(p_role name)
    language plpgsql
    as $$
declare
    v_change text;
begin
    for v_change in
        select format('alter table %s owner to %I', c.oid::regclass, p_role)
          from pg_class c
         where c.relnamespace = 'inbox'::regnamespace and c.relkind in ('r', 'p', 'S')
         union all
        select format('alter routine %s owner to %I', f.oid::regprocedure, p_role)
          from pg_proc f
         where f.pronamespace = 'inbox'::regnamespace
         union all
        select format('alter schema inbox owner to %I', p_role)
    loop
        execute v_change;
    end loop;
end
$$;
