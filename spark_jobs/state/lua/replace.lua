#!lua flags=allow-oom
-- Replace the state of one component in one shard by an imported one.
--
-- KEYS   1 run: see redis_shard.py   then pairs: a key of the state, and the imported one beside it
-- ARGV   1 number of the import, which is that of a run   2 number of shards; "" removes the state
--        3 seconds that the clock of the marks has run, "" without   4 number of marks
-- Reply  0 a later run has begun   1 done, now or before
--
-- Must never delete at a repeat what the first call has put there.

local run = KEYS[1]
local newest, imported = unpack(redis.call('HMGET', run, 'run_number', 'imported'))
if newest and tonumber(newest) > tonumber(ARGV[1]) then return 0 end
if imported == ARGV[1] then return 1 end

for i = 2, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[i + 1]) == 1 then
    redis.call('RENAME', KEYS[i + 1], KEYS[i])
  else
    redis.call('UNLINK', KEYS[i])
  end
end
redis.call('HDEL', run, 'shards', 'ran', 'ran_at', 'marks', 'layout')
-- The number stays in any case: it refuses the runs before.
redis.call('HSET', run, 'run_number', ARGV[1], 'imported', ARGV[1])
if ARGV[2] ~= '' then redis.call('HSET', run, 'shards', ARGV[2]) end
if ARGV[3] ~= '' then redis.call('HSET', run, 'ran', ARGV[3], 'marks', ARGV[4], 'layout', 2) end
return 1
