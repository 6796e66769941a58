#!lua flags=allow-oom
-- Do a part of a commit in one shard, and log undo records. Begins with undo.lua.
--
-- KEYS   entries, run, turn, undo: see redis_shard.py
-- ARGV   1 number of the run   2 turn: "run step attempt"   3 number of this call, from 1 on
--        4 "run step" if this is the last one, else ""  5 digest of the commit   6 number of puts
--        7 number of deletions
--        then a put: field, value; a deletion: field; an increment: field, amount
-- Reply  0 a later turn has begun   1 done, now or before   2 an increment met a value that is not a 64-bit number
--
-- The fields of a turn differ, so a record has the value before the turn. All or nothing.

local entries, run, turn, undo = unpack(KEYS)
local number, puts, deletions = tonumber(ARGV[3]), tonumber(ARGV[6]), tonumber(ARGV[7])
local mine, calls = unpack(redis.call('HMGET', turn, 'turn', 'calls'))
if mine ~= ARGV[2] or not calls or redis.call('HGET', run, 'run_number') ~= ARGV[1] then return 0 end
if number <= tonumber(calls) then return 1 end
redis.call('HSET', turn, 'calls', ARGV[3])

local first = 8 + 2 * puts + deletions
for i = first, #ARGV, 2 do
  local field, amount = ARGV[i], ARGV[i + 1]
  local record = (redis.call('HEXISTS', entries, field) == 1 and '+' or '*') .. amount
  if type(redis.pcall('HINCRBY', entries, field, amount)) == 'table' then
    for j = first, i - 2, 2 do
      take_back(entries, ARGV[j], redis.call('HGET', undo, ARGV[j]))
      redis.call('HDEL', undo, ARGV[j])
    end
    redis.call('HSET', turn, 'calls', calls)
    return 2
  end
  redis.call('HSET', undo, field, record)
end

local fields, pairs_, records = {}, {}, {}
for i = 8, 7 + 2 * puts, 2 do
  fields[#fields + 1] = ARGV[i]
  pairs_[#pairs_ + 1] = ARGV[i]
  pairs_[#pairs_ + 1] = ARGV[i + 1]
end
for i = 8 + 2 * puts, first - 1 do fields[#fields + 1] = ARGV[i] end
if #fields > 0 then
  for i, old in ipairs(redis.call('HMGET', entries, unpack(fields))) do
    records[#records + 1] = fields[i]
    records[#records + 1] = old and '=' .. old or '-'
  end
  redis.call('HSET', undo, unpack(records))
end
if puts > 0 then redis.call('HSET', entries, unpack(pairs_)) end
if deletions > 0 then redis.call('HDEL', entries, unpack(fields, puts + 1)) end
if ARGV[4] ~= '' then redis.call('HSET', turn, 'committed', ARGV[4], 'digest', ARGV[5]) end
return 1
