#!lua flags=allow-oom
-- Note that the process of an attempt lives.
--
-- KEYS   1 meta
-- ARGV   1 run   2 attempt
-- Reply  1, or 0 if the inbox belongs to another run or a newer attempt

local run, attempt = unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt'))
if run ~= ARGV[1] or tonumber(attempt) > tonumber(ARGV[2]) then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'seen', time[1] * 1000 + math.floor(time[2] / 1000))
return 1
