#!lua
-- Append one parcel to an inbox, once.
--
-- KEYS   1 meta   2 entries   3 senders   4 wake
-- ARGV   1 run   2 sender's task   3 its attempt   4 number   5 part   6 digest
--        7 most tuples, 8 most bytes; below 0: no bound
--        then for each chunk its tuples, its payload
-- Reply  0 done, 1 repeated, 2 different, 3 full, 4 stale
--
-- Must never remember a part of a number that it did not append.

local run, tuples, size = unpack(redis.call('HMGET', KEYS[1], 'run', 'tuples', 'bytes'))
if run ~= ARGV[1] then return 4 end
local known = redis.call('HGET', KEYS[3], ARGV[2])
if known then
  local attempt, last, last_part, digest = known:match('^(%d+) (%d+) (%d+) (%x*)$')
  if tonumber(attempt) > tonumber(ARGV[3]) then return 4 end
  local number, part = tonumber(ARGV[4]), tonumber(ARGV[5])
  last, last_part = tonumber(last), tonumber(last_part)
  if number == last and part == last_part and digest ~= ARGV[6] then return 2 end
  if number < last or number == last and part <= last_part then return 1 end
end

tuples, size = tonumber(tuples or 0), tonumber(size or 0)
for at = 9, #ARGV, 2 do
  tuples, size = tuples + ARGV[at], size + #ARGV[at + 1]
end
local most_tuples, most_size = tonumber(ARGV[7]), tonumber(ARGV[8])
if most_tuples >= 0 and (tuples > most_tuples or size > most_size) then
  if redis.call('XLEN', KEYS[2]) > 0 then return 3 end
end

redis.call('HSET', KEYS[3], ARGV[2], table.concat({unpack(ARGV, 3, 6)}, ' '))
for at = 9, #ARGV, 2 do
  redis.call('XADD', KEYS[2], '*', ARGV[at], ARGV[at + 1])
end
redis.call('HSET', KEYS[1], 'tuples', tuples, 'bytes', size)
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], '') end
return 0
