-- What no copy comes for. Functions of these names stand in the migrations.

-- name: look_at_consumer
-- The time, and whether a process of the service that lives holds the consumer paused.
select inbox.clock() as now, inbox.is_paused($1, $2) as paused;

-- name: find_ownerless
-- A consumer's attempts without an outcome whose process is gone, after a key.
select key, claim_id, message_id, type from inbox.find_ownerless($1, $2, $3, $4);

-- name: judge_ownerless
-- Judge an attempt whose process is gone; the verdict says what became of its message.
select verdict, number from inbox.judge_ownerless($1, $2, $3, $4, $5, $6);

-- name: find_stranded
-- A consumer's messages that wait, so many seconds past their time, for a copy that has not come, after a position.
select key, generation, due_at, message_id from inbox.find_stranded($1, $2, $3, $4, $5);

-- name: mark_stranded
-- Ask for a copy of such a message; the verdict says whether that was done.
select inbox.mark_stranded($1, $2, $3) as verdict;
