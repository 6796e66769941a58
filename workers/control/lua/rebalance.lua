#!lua
-- Order to rebalance a topology, with new numbers of tasks for some bolts.
--
-- KEYS   1 the number of orders, a string   2 bolt to its number of tasks, a hash
-- ARGV   for each named bolt: its id, its number of tasks; "" cancels the ordered number
-- Reply  nothing
--
-- Must never change the number of a bolt not named.

redis.call('INCR', KEYS[1])
for at = 1, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[at])
  else
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
end
