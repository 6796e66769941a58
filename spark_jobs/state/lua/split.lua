#!lua flags=allow-oom
-- Split some buckets of an older version, by the last byte of their fields, and count their marks.
--
-- KEYS   run: see redis_shard.py; then for each old bucket its parts, the first of which has its name
-- ARGV   1 number of the run   2 number of parts
-- Reply  number of marks; -1 a later run has begun
--
-- Must end all earlier runs first: their tasks would make marks in the old buckets.

local run, parts, count = KEYS[1], tonumber(ARGV[2]), 0
if tonumber(redis.call('HGET', run, 'run_number') or 0) > tonumber(ARGV[1]) then return -1 end
redis.call('HSET', run, 'run_number', ARGV[1])
for first = 2, #KEYS, parts do
  local marks = redis.call('HGETALL', KEYS[first])
  for i = 1, #marks, 2 do
    local part = marks[i]:byte(-1) % parts
    if part > 0 then
      redis.call('HSET', KEYS[first + part], marks[i], marks[i + 1])
      redis.call('HDEL', KEYS[first], marks[i])
    end
  end
  for part = 0, parts - 1 do count = count + redis.call('HLEN', KEYS[first + part]) end
end
return count
