-- Read marks in one shard as they were before this step.
--
-- KEYS   undo of this task; turn and undo of each other task: see redis_keys.py; the bucket of each
--        mark
-- ARGV   1 number of other tasks   2 "1": without what the last commit of this task has made
--        3 the keys of the marks, one after the other
-- Reply  for each mark that there is: its number, and its record; or {number among the other
--        tasks, "run step"} if the last commit of that task has made it, and this shard does not
--        know whether that commit is final
--
-- Must never take a mark for made that may be taken back: a message could be acked whose effect
-- is gone.

local function made_by(undo, key)
  local call, keys = 1, redis.call('HGET', undo, '!1')
  while keys do
    local at = keys:find(key, 5, true)
    while at and (at - 5) % 16 ~= 0 do at = keys:find(key, at + 1, true) end
    if at then return true end
    call = call + 1
    keys = redis.call('HGET', undo, '!' .. call)
  end
  return false
end

local others, through, keys = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3]
local before, found = 1 + 2 * others, {}
for i = 1, #KEYS - before do
  local mark = redis.call('HGET', KEYS[before + i], keys:sub(16 * i - 15, 16 * i - 5))
  local key = mark and keys:sub(16 * i - 15, 16 * i)
  if mark and through and made_by(KEYS[1], key) then mark = false end
  for other = 1, mark and others or 0 do
    if made_by(KEYS[2 * other + 1], key) then
      local place, committed = unpack(redis.call('HMGET', KEYS[2 * other], 'logged', 'committed'))
      if place ~= committed then mark = {other, place or ''} end
    end
  end
  if mark then
    found[#found + 1] = i
    found[#found + 1] = type(mark) == 'string' and mark:sub(4) or mark
  end
end
return found
