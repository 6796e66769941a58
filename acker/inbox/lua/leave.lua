#!lua flags=allow-oom
-- Ask the newest attempt at a task to leave.
--
-- KEYS   1 meta
-- ARGV   1 run
-- Reply  1, or 0 if the inbox belongs to another run
--
-- Must never ask a later attempt: it may run on an executor that stays.

local run, drawn = unpack(redis.call('HMGET', KEYS[1], 'run', 'drawn'))
if run ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'leaving', drawn)
return 1
