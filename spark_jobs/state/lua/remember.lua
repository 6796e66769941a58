#!lua flags=allow-oom
-- Make marks in one shard, as a part of a commit. Begins with clock.lua.
--
-- KEYS   run, turn, undo: see redis_shard.py; the bucket of each mark
-- ARGV   1 number of the run   2 turn: "run step attempt"   3 number of this call, from 1 on
--        4 "run step" if this is the last one, else ""   5 digest of the commit
--        6 the keys of the marks, one after the other
--        then the record of each
-- Reply  0 a later turn has begun   1 done, now or before   3 one of the marks exists
--
-- All or nothing: an existing mark was made by another task, or its effect took place, so this step
-- must begin again and read it.

local run, turn, undo = unpack(KEYS, 1, 3)
local number, keys = tonumber(ARGV[3]), ARGV[6]
local count = #keys / 16
local mine, calls = unpack(redis.call('HMGET', turn, 'turn', 'calls'))
if mine ~= ARGV[2] or not calls or redis.call('HGET', run, 'run_number') ~= ARGV[1] then return 0 end
if number <= tonumber(calls) then return 1 end
redis.call('HSET', turn, 'calls', ARGV[3])

local time = struct.pack('>I3', ROUND + math.floor(ran_now(run) / UNIT) % ROUND)
for i = 1, count do
  local field = keys:sub(16 * i - 15, 16 * i - 5)
  if redis.call('HSETNX', KEYS[3 + i], field, time .. ARGV[6 + i]) == 0 then
    for j = 1, i - 1 do redis.call('HDEL', KEYS[3 + j], keys:sub(16 * j - 15, 16 * j - 5)) end
    redis.call('HSET', turn, 'calls', calls)
    return 3
  end
end
redis.call('HSET', undo, '!' .. number, '~' .. time .. keys)
redis.call('HINCRBY', run, 'marks', count)
if ARGV[4] ~= '' then redis.call('HSET', turn, 'committed', ARGV[4], 'digest', ARGV[5]) end
return 1
