#!lua flags=allow-oom
-- Forget the turns of tasks that a run no longer has, in one shard.
--
-- KEYS   run, then turn and undo of each of these tasks: see redis_shard.py
-- ARGV   1 number of the run   2 number of its tasks
-- Reply  1 done   0 another run has begun, or something is left to undo
--
-- Must come after the begin of this run in all shards: it has undone their incomplete commits, and
-- refuses their late turns by the number of the run alone.

local run = KEYS[1]
if redis.call('HGET', run, 'run_number') ~= ARGV[1] then return 0 end
for i = 3, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[i]) == 1 then return 0 end
end
for i = 2, #KEYS, 2 do redis.call('UNLINK', KEYS[i]) end
redis.call('HSET', run, 'tasks', ARGV[2])
return 1
