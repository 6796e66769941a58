#!lua flags=allow-oom
-- Refuse appends of older attempts of a sender from now on.
--
-- KEYS   1 meta   2 senders
-- ARGV   1 run   2 sender's task   3 its attempt
-- Reply  1, or 0 if the inbox belongs to another run or knows a newer attempt of the sender
--
-- Must never forget the last number: the new attempt may repeat it.

if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return 0 end
local attempt, rest = '0', ' 0 0 '
local known = redis.call('HGET', KEYS[2], ARGV[2])
if known then attempt, rest = known:match('^(%d+)(.*)$') end
if tonumber(attempt) > tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. rest)
return 1
