-- Process starts and their heartbeats.

-- name: register_member
-- Make this process start known; its attempts are undecided, not dead, from here on. Asked again by one that has
-- stopped, whose heartbeat still runs, it does not revive it: its attempts would count as crashed then.
insert into inbox.member (id, service, build, host, pid, expiry, started_at, heartbeat_at, steady_since)
values ($1, $2, $3, $4, $5, make_interval(secs => $6), inbox.clock(), inbox.clock(), inbox.clock())
on conflict (id) do update set heartbeat_at = excluded.heartbeat_at, steady_since = excluded.steady_since;

-- name: beat
-- Prove that this process lives, and tell which consumers it holds paused. No row back: it was removed and must be
-- registered again, or it has stopped.
update inbox.member
   set heartbeat_at = inbox.clock(), paused = $2,
       steady_since = case when heartbeat_at + expiry > inbox.clock() then steady_since else inbox.clock() end
 where id = $1 and stopped_at is null
returning heartbeat_at;

-- name: stop_member
-- The process ends in order: what it still owes was given up, not died with.
update inbox.member set stopped_at = inbox.clock() where id = $1 and stopped_at is null returning id;

-- name: forget_members
-- Members that ended long ago and own no undecided attempt: such an attempt is the claim of its message.
delete from inbox.member m
 where m.heartbeat_at < inbox.clock() - make_interval(secs => $1)
   and not exists (select from inbox.message o join inbox.attempt a on a.claim_id = o.claim_id
                    where o.state = 'attempting' and o.due_at is null and a.member_id = m.id);
