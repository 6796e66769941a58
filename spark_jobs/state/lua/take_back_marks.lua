-- Take marks back in one shard that a commit which broke off has made.
--
-- KEYS   turn, undo: see redis_keys.py; the bucket of each mark
-- ARGV   1 turn: "run step attempt"   then for each mark: its field in the undo log, its record
--        there, its field in the bucket
-- Reply  0 a later turn has begun   1 done
--
-- Must never take back what another has made since: a mark that grew old may have been made anew.

local turn, undo = KEYS[1], KEYS[2]
if redis.call('HGET', turn, 'turn') ~= ARGV[1] then return 0 end
for i = 3, #KEYS do
  local logged, record, field = ARGV[3 * i - 7], ARGV[3 * i - 6], ARGV[3 * i - 5]
  local mark = redis.call('HGET', KEYS[i], field)
  if mark and '~' .. mark:sub(1, 4) == record then redis.call('HDEL', KEYS[i], field) end
  redis.call('HDEL', undo, logged)
end
return 1
