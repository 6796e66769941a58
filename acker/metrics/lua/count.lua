#!lua flags=allow-oom
-- Add counts to the counters of all time and of the current slot of each window, once however often
-- the call is repeated. Counters of kinds of errors are counters of all time only.
--
-- KEYS   1 the number of the reporter's last call   2 the time at which counting began
--        3 the first report by kind   4 the counters of all time   5 and more: the current slots
-- ARGV   1 the number of this call; a reporter counts from 1
--        2 milliseconds that a reporter is remembered   3 the time in seconds
--        4 number of arguments about kinds   then per slot the milliseconds that it is kept
--        then in fours: kind, its field, the field of other kinds, count
--        then field and count, in pairs
-- Reply  1 counted, 0 a repeat
--
-- Must never build the key of a slot itself: a cluster may have that key on another server. Must
-- never count at the field of a kind without a report: trace.lua would never delete the field.

if tonumber(ARGV[1]) <= tonumber(redis.call('GET', KEYS[1]) or '0') then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3], 'NX')
local first = #KEYS + 1
for at = first, #KEYS + ARGV[4], 4 do
  local kept = redis.call('HEXISTS', KEYS[3], ARGV[at]) == 1
  redis.call('HINCRBY', KEYS[4], kept and ARGV[at + 1] or ARGV[at + 2], ARGV[at + 3])
end
for at = first + ARGV[4], #ARGV, 2 do
  for key = 4, #KEYS do
    redis.call('HINCRBY', KEYS[key], ARGV[at], ARGV[at + 1])
  end
end
for key = 5, #KEYS do
  redis.call('PEXPIRE', KEYS[key], ARGV[key])
end
return 1
