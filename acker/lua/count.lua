-- Add to counters: those of all time, and those of the slot of each window.
--
-- KEYS   1 when counting began   2 the counters of all time   3 and more: the slots of now
-- ARGV   1 now, in seconds   then for each slot how many milliseconds it is kept   then field and count, in pairs
-- Reply  nothing
--
-- Must never make the name of a slot itself: in a cluster it could lie elsewhere.

redis.call('SET', KEYS[1], ARGV[1], 'NX')
local first = #KEYS
for at = first, #ARGV, 2 do
  for key = 2, #KEYS do
    redis.call('HINCRBY', KEYS[key], ARGV[at], ARGV[at + 1])
  end
end
for key = 3, #KEYS do
  redis.call('PEXPIRE', KEYS[key], ARGV[key - 1])
end
