#!lua
-- Order to rebalance a topology, and how many tasks its bolts have from now on.
--
-- KEYS   1 the number of such orders, a string   2 bolt to its number of tasks, a hash
-- ARGV   for each bolt that is named: its id, its number of tasks; "" takes the number back
-- Reply  nothing
--
-- Must never change the number of a bolt that is not named.

redis.call('INCR', KEYS[1])
for at = 1, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[at])
  else
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
end
