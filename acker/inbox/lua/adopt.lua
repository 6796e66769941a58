#!lua flags=allow-oom
-- Give an inbox to a run, or delete it if it is empty and the topology no longer has its task.
--
-- KEYS   1 meta   2 entries   3 senders   4 progress   5 wake   6 snapshots
-- ARGV   1 run   2 1 if the topology has the task, else 0
-- Reply  0 forgotten, 1 adopted, 2 refused: the inbox belongs to a run with a higher number
--
-- Must never delete entries or snapshots: their roots must be released first. Must never restart
-- the numbers of attempts: a process of an earlier run would be mistaken for one of this run. Must
-- never give an inbox back to an earlier run, whose driver may call late.

local function number(run)
  return tonumber((run or ''):match('^%d+') or 0)
end

local run, drawn, attempt = unpack(redis.call('HMGET', KEYS[1], 'run', 'drawn', 'attempt'))
if number(run) > number(ARGV[1]) then return 2 end

if ARGV[2] == '0' and redis.call('XLEN', KEYS[2]) == 0 and redis.call('EXISTS', KEYS[6]) == 0 then
  redis.call('DEL', unpack(KEYS))
  return 0
end
if run == ARGV[1] then return 1 end
for _, kind in ipairs({'kept', 'sealed'}) do
  local snapshot = redis.call('HGET', KEYS[6], kind)
  if snapshot then redis.call('HSET', KEYS[6], 'left ' .. kind .. ' ' .. run, snapshot) end
end
redis.call('HDEL', KEYS[6], 'kept', 'sealed')
redis.call('DEL', KEYS[3], KEYS[4])
redis.call('HDEL', KEYS[1],
  'taken', 'seen', 'since', 'place', 'retrying', 'windows', 'leaving')
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'drawn', drawn or 0, 'before', drawn or 0,
  'attempt', attempt or 0, 'step', 0, 'ticks', 0)
-- Wake a waiting attempt of the earlier run, so that it ends.
if redis.call('EXISTS', KEYS[5]) == 0 then redis.call('RPUSH', KEYS[5], '') end
return 1
