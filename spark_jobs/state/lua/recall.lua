-- Read marks in one shard as they were before this step.
--
-- KEYS   undo of this task; turn and undo of each other task: see redis_keys.py; the bucket of each
--        mark
-- ARGV   1 number of other tasks   2 "1": without what the last commit of this task has made
--        then for each mark: its field in the undo logs, its field in the bucket
-- Reply  for each mark: nothing if there is none; its record; or {number among the other tasks,
--        "run step"} if the last commit of that task has made it, and this shard does not know
--        whether that commit is final
--
-- Must never take a mark for made that may be taken back: a message could be acked whose effect
-- is gone.

local others, through = tonumber(ARGV[1]), ARGV[2] == '1'
local found = {}
for i = 1, #KEYS - 1 - 2 * others do
  local logged, field = ARGV[1 + 2 * i], ARGV[2 + 2 * i]
  local mark = redis.call('HGET', KEYS[1 + 2 * others + i], field)
  if mark and through and redis.call('HEXISTS', KEYS[1], logged) == 1 then mark = false end
  for other = 1, mark and others or 0 do
    local turn, undo = KEYS[2 * other], KEYS[2 * other + 1]
    if redis.call('HEXISTS', undo, logged) == 1 then
      local place, committed = unpack(redis.call('HMGET', turn, 'logged', 'committed'))
      if place ~= committed then mark = {other, place or ''} end
    end
  end
  found[i] = type(mark) == 'string' and mark:sub(5) or mark
end
return found
