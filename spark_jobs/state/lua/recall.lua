-- Read marks in one shard as they were before this step.
--
-- KEYS   undo of this task; turn and undo of each other one (redis_shard.py); bucket of each mark
-- ARGV   1 number of other tasks   2 "1": without the marks of this task's last commit   3 the keys, one after another
-- Reply  number of marks looked for: all, unless those found have 4 MiB; then for each existing one: its number, and
--        its record; or {number among the other tasks, "run step"} if the last commit of that task made it and this
--        shard does not know whether that commit is final
--
-- Must never report a mark as made that may be undone: a message whose effect is gone could be acked. Must never
-- search a log for each mark: after a restart most marks exist, and Redis would block for seconds.

-- Calls ``met`` with the number of each mark among ``numbers``, by key, that is in an undo log.
local function each_made(undo, numbers, few, met)
  local call, made = 1, redis.call('HGET', undo, '!1')
  while made do
    if few then
      for key, number in pairs(numbers) do
        local at = made:find(key, 5, true)
        while at and (at - 5) % 16 ~= 0 do at = made:find(key, at + 1, true) end
        if at then met(number) end
      end
    else
      for at = 5, #made, 16 do
        local number = numbers[made:sub(at, at + 15)]
        if number then met(number) end
      end
    end
    call, made = call + 1, redis.call('HGET', undo, '!' .. (call + 1))
  end
end

-- A mark of an older version has no bit set in its time; zeros pad its digest of 4 bytes.
local function record_of(mark)
  return mark:byte() > 127 and mark:sub(4) or mark:sub(4, 7) .. ('\0'):rep(12) .. mark:sub(8)
end

local others, through, keys = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3]
local before, marks, numbers, count, size = 1 + 2 * others, {}, {}, 0, 0
for i = 1, #KEYS - before do
  if size >= 4 * 1024 * 1024 then break end
  marks[i] = redis.call('HGET', KEYS[before + i], keys:sub(16 * i - 15, 16 * i - 5))
  if marks[i] then numbers[keys:sub(16 * i - 15, 16 * i)], count, size = i, count + 1, size + #marks[i] end
end
local few, found = count <= 16, {#marks}
if through and count > 0 then each_made(KEYS[1], numbers, few, function(i) marks[i] = false end) end
for other = 1, count > 0 and others or 0 do
  local place, committed = unpack(redis.call('HMGET', KEYS[2 * other], 'logged', 'committed'))
  if place ~= committed then
    local unsure = {other, place or ''}
    each_made(KEYS[2 * other + 1], numbers, few, function(i) marks[i] = marks[i] and unsure end)
  end
end
for i, mark in ipairs(marks) do
  if mark then
    found[#found + 1], found[#found + 2] = i, type(mark) == 'string' and record_of(mark) or mark
  end
end
return found
