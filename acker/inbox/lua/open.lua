#!lua flags=allow-oom
-- Take over an inbox for an attempt at its task.
--
-- KEYS   1 meta   2 progress   3 wake   4 snapshots
-- ARGV   1 run   2 attempt
-- Reply  step, ticks, last position taken or false, progress (bitmaps by position, and 'sealed'),
--        snapshot or false; false if the inbox belongs to another run or a newer attempt

local run, attempt, step, ticks, taken =
  unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt', 'step', 'ticks', 'taken'))
if run ~= ARGV[1] or tonumber(attempt) > tonumber(ARGV[2]) then return false end
redis.call('HSET', KEYS[1], 'attempt', ARGV[2])
-- Wake a waiting older attempt, so that it ends and consumes no wake-ups meant for this one.
if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('RPUSH', KEYS[3], '') end
return {step, ticks, taken, redis.call('HGETALL', KEYS[2]), redis.call('HGET', KEYS[4], 'kept')}
