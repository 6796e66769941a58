#!lua flags=allow-oom
-- Undo the marks of one call of an incomplete commit in one shard.
--
-- KEYS   run, turn, undo: see redis_shard.py; the bucket of each mark
-- ARGV   1 turn: "run step attempt"   2 field of the call in the undo log   3 its record there
-- Reply  0 a later turn has begun   1 done
--
-- Must never delete a mark that another task has made since, after this one expired.

local run, turn, undo = unpack(KEYS, 1, 3)
if redis.call('HGET', turn, 'turn') ~= ARGV[1] then return 0 end
local time, keys, gone = ARGV[3]:sub(2, 4), ARGV[3]:sub(5), 0
for i = 1, #keys / 16 do
  local field = keys:sub(16 * i - 15, 16 * i - 5)
  local mark = redis.call('HGET', KEYS[3 + i], field)
  if mark and mark:sub(1, 3) == time then gone = gone + redis.call('HDEL', KEYS[3 + i], field) end
end
if gone > 0 then redis.call('HINCRBY', run, 'marks', -gone) end
redis.call('HDEL', undo, ARGV[2])
return 1
