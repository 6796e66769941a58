#!lua flags=allow-oom
-- Record the tuples that a step covers.
--
-- KEYS   1 meta   2 progress   3 snapshots
-- ARGV   1 run   2 attempt   3 step   4 the seal, as finish.lua reads it
--        5 its last finished step   6 the last position taken   7 the snapshot, if there is one
-- Reply  0 stale, 1 sealed (now or earlier) or finished, 2 another step is sealed and not finished,
--        3 the server has lost that step or take: tuples may be back, and others come again
--
-- Must never replace a seal: effects of its step may have left.

local function time(position) return tonumber((position or '0'):match('^%d+')) end
local run, attempt, finished, taken =
  unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt', 'step', 'taken'))
if run ~= ARGV[1] or attempt ~= ARGV[2] then return 0 end
local step = tonumber(ARGV[3])
if step <= tonumber(finished) then return 1 end
if tonumber(finished) < tonumber(ARGV[5]) or time(taken) < time(ARGV[6]) then return 3 end
local fresh = redis.call('HSETNX', KEYS[2], 'sealed', ARGV[4]) == 1
if not fresh then
  local sealed = redis.call('HGET', KEYS[2], 'sealed')
  if step > tonumber(sealed:match('^%d+')) then return 2 end
end
if ARGV[7] then
  redis.call('HSET', KEYS[3], 'sealed', ARGV[7])
elseif not fresh then
  redis.call('HDEL', KEYS[3], 'sealed')
end
return 1
