#!lua
-- Give an order about some bolts: their numbers of tasks, or since when they are paused.
--
-- KEYS   1 the number of orders, a string   2 bolt to what was ordered, a hash
-- ARGV   for each named bolt: its id, what is ordered; "" cancels the earlier order
-- Reply  nothing
--
-- Must never change the order about a bolt not named.

redis.call('INCR', KEYS[1])
for at = 1, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[at])
  else
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
end
