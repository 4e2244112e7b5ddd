-- The attempt's statements. Functions of these names stand in the migrations; what they guard is written
-- there.

-- name: start_attempt
-- Decide about a copy and, if it may run, count its start. Commits by itself: the start is durable before the
-- handler runs.
select verdict, number, generation, remaining_s, state
  from inbox.start_attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18);

-- name: record_outcome
-- Record an attempt without effects, in the claim's own transaction; no row of this claim in `attempting` is
-- IN001.
select state, number, generation, delay_s, reason
  from inbox.record_outcome($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
                            $21, $22, $23, $24);

-- name: reject_oversize
-- Reject a message that is too large to be begun, with the beginning of its body and with what tells the whole.
select inbox.reject_oversize($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: let_go
-- Give the key's session lock back. False: this session did not hold it.
select pg_advisory_unlock(inbox.lock_id($1));

-- name: settle_debt
-- Mark an attempt whose session is gone as aborted, under its key's lock; false while the lock is held.
select inbox.settle_debt($1, $2, $3);
