#!lua flags=allow-oom
-- Record the heartbeat of an attempt's process.
--
-- KEYS   1 meta
-- ARGV   1 run   2 attempt   3 milliseconds spent in the current call, -1 if there is none
--        4 the place where the process runs   5 the number of tuples that wait for a retry
--        6 the open windows of the task, empty if it has none
-- Reply  1, or 2 if the attempt is asked to leave, or 0 if the inbox belongs to another run or a
--        newer attempt

local run, attempt, leaving = unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt', 'leaving'))
if run ~= ARGV[1] or tonumber(attempt) > tonumber(ARGV[2]) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1],
  'seen', now, 'place', ARGV[4], 'retrying', ARGV[5], 'windows', ARGV[6])
if tonumber(ARGV[3]) < 0 then
  redis.call('HDEL', KEYS[1], 'since')
else
  redis.call('HSET', KEYS[1], 'since', now - ARGV[3])
end
return tonumber(leaving or -1) >= tonumber(ARGV[2]) and 2 or 1
