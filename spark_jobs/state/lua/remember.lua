-- Make marks in one shard, as a part of a commit, and forget old ones. Begins with clock.lua.
--
-- KEYS   run, turn, undo: see redis_keys.py; the bucket of each mark; buckets to look for old marks
-- ARGV   1 number of the run   2 turn: "run step attempt"   3 number of this call, from 1 on
--        4 "run step" if this is the last one, else ""   5 digest of the commit
--        6 seconds that marks are kept for   7 number of marks
--        then for each: its field in the undo log, its field in the bucket, the record
-- Reply  0 a later turn has begun   1 done, now or before   3 one of the marks is there
--
-- All of it is done or nothing: a mark that is there was made by another task, or stands for an
-- effect that took place, so that this step must begin again and look.

local run, turn, undo = unpack(KEYS, 1, 3)
local number, count = tonumber(ARGV[3]), tonumber(ARGV[7])
local mine, calls = unpack(redis.call('HMGET', turn, 'turn', 'calls'))
if mine ~= ARGV[2] or not calls or redis.call('HGET', run, 'run_number') ~= ARGV[1] then return 0 end
if number <= tonumber(calls) then return 1 end
for i = 1, count do
  if redis.call('HEXISTS', KEYS[3 + i], ARGV[6 + 3 * i]) == 1 then return 3 end
end
-- The first write: a server that is out of memory refuses here and leaves all as it was.
redis.call('HSET', turn, 'calls', ARGV[3])

local ran = ran_now(run)
local time = struct.pack('>I4', ran)
for i = 1, count do
  local logged, field, record = ARGV[5 + 3 * i], ARGV[6 + 3 * i], ARGV[7 + 3 * i]
  redis.call('HSET', KEYS[3 + i], field, time .. record)
  redis.call('HSET', undo, logged, '~' .. time)
end

local oldest = ran - tonumber(ARGV[6])
for i = 4 + count, oldest > 0 and #KEYS or 0 do
  local marks = redis.call('HGETALL', KEYS[i])
  for j = 1, #marks, 2 do
    if struct.unpack('>I4', marks[j + 1]) < oldest then redis.call('HDEL', KEYS[i], marks[j]) end
  end
end
if ARGV[4] ~= '' then redis.call('HSET', turn, 'committed', ARGV[4], 'digest', ARGV[5]) end
return 1
