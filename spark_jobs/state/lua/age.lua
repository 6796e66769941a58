#!lua flags=allow-oom
-- Advance the clock of the marks in one shard, and delete old marks in some buckets. Begins with
-- clock.lua.
--
-- KEYS   run: see redis_shard.py; buckets to search
-- ARGV   1 seconds that marks are kept for
-- Reply  1

local run, keep = KEYS[1], tonumber(ARGV[1])
if redis.call('HEXISTS', run, 'ran') == 0 then return 1 end
local ran = ran_now(run)
local now, kept, oldest = math.floor(ran / UNIT), math.ceil(keep / UNIT), math.floor((ran - keep) / 16)

local function is_old(mark)
  local made = struct.unpack('>I3', mark)
  if made < ROUND then return made < oldest end
  return (now - made) % ROUND > kept
end

local gone = 0
for i = 2, #KEYS do
  local marks, old = redis.call('HGETALL', KEYS[i]), {}
  for j = 1, #marks, 2 do
    if is_old(marks[j + 1]) then old[#old + 1] = marks[j] end
  end
  for j = 1, #old, 1000 do
    redis.call('HDEL', KEYS[i], unpack(old, j, math.min(j + 999, #old)))
  end
  gone = gone + #old
end
if gone > 0 then redis.call('HINCRBY', run, 'marks', -gone) end
return 1
