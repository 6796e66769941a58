#!lua flags=allow-oom
-- Do a part of a commit in one shard, and log undo records. Begins with undo.lua and add.lua.
--
-- KEYS   entries, run, turn, undo: see redis_shard.py
-- ARGV   1 number of the run   2 turn: "run step attempt"   3 number of this call, from 1 on
--        4 "run step" if this is the last one, else ""  5 digest of the commit   6 number of puts
--        7 number of deletions   8 number of small increments   9 their amounts, in JSON
--        10 the other tasks to which some of the entries belong: indexes, or "*" for any
--        then a put: field, value; a deletion: field; a small increment: field; others: field, amount
-- Reply  0 a later turn has begun   1 done, now or before   2 an increment met a value that is not a 64-bit number
--
-- The fields of a turn differ, so a record has the value before the turn. All or nothing.

local entries, run, turn, undo = unpack(KEYS)
local puts, deletions, small = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local mine, calls = unpack(redis.call('HMGET', turn, 'turn', 'calls'))
if mine ~= ARGV[2] or not calls or redis.call('HGET', run, 'run_number') ~= ARGV[1] then return 0 end
if tonumber(ARGV[3]) <= tonumber(calls) then return 1 end
redis.call('HSET', turn, 'calls', ARGV[3])

local deleted = 11 + 2 * puts
local first = deleted + deletions
local counted = {unpack(ARGV, first, first + small - 1)}
local sets, others, missing = small_sums(entries, counted, cjson.decode(ARGV[9]))
local packed = #others
for i = first + small, #ARGV do others[#others + 1] = ARGV[i] end
local done = increment(entries, others)
if not done then
  redis.call('HSET', turn, 'calls', calls)
  return 2
end

for i = 11, deleted - 1 do sets[#sets + 1] = ARGV[i] end
local records = {unpack(done, packed + 1)}
local fields = {unpack(ARGV, deleted, first - 1)}
for i = 1, puts do fields[deletions + i] = ARGV[9 + 2 * i] end
for i, old in ipairs(#fields > 0 and redis.call('HMGET', entries, unpack(fields)) or {}) do
  records[#records + 1], records[#records + 2] = fields[i], old and '=' .. old or '-'
end
if small > 0 then
  redis.call('HSET', turn, 'packed', ARGV[3])
  records[#records + 1] = '#' .. ARGV[3]
  records[#records + 1] = '#' .. cmsgpack.pack(counted, ARGV[9], missing)
end
if #records > 0 then redis.call('HSET', undo, unpack(records)) end
if #sets > 0 then redis.call('HSET', entries, unpack(sets)) end
if deletions > 0 then redis.call('HDEL', entries, unpack(ARGV, deleted, first - 1)) end
for owner in ARGV[10]:gmatch('%S+') do redis.call('HINCRBY', run, 'foreign:' .. owner, 1) end
if ARGV[4] ~= '' then redis.call('HSET', turn, 'committed', ARGV[4], 'digest', ARGV[5]) end
return 1
