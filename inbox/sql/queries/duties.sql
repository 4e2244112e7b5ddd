-- Work that one process of a service does for all.

-- name: hold_duty
-- Take a duty, or keep it, for so many seconds from now. No row back: another process holds it, and has a heartbeat.
insert into inbox.duty as d (service, name, member_id, held_until)
values ($1, $2, $3, inbox.clock() + make_interval(secs => $4))
on conflict (service, name) do update set member_id = excluded.member_id, held_until = excluded.held_until
 where d.member_id = excluded.member_id or d.held_until <= inbox.clock()
    or not exists (select from inbox.member m
                    where m.id = d.member_id and m.stopped_at is null and m.heartbeat_at + m.expiry > inbox.clock())
returning d.held_until;

-- name: let_go_of_duty
-- Let another process take it at once.
delete from inbox.duty where service = $1 and name = $2 and member_id = $3;
