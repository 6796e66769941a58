#!lua flags=allow-oom
-- Return what was ordered about bolts; if there is no order, store the order that the driver knows.
--
-- KEYS   1 the number of orders, a string   2 bolt to what was ordered, a hash
-- ARGV   1 the number of orders that the driver knows; 0: none
--        then for each bolt of the last order: its id, what was ordered
-- Reply  the number of orders, then for each bolt its id, what was ordered
--
-- Must never replace an existing order: an operator may give one to a server that was just emptied.

local count = redis.call('GET', KEYS[1])
if not count and ARGV[1] ~= '0' then
  count = ARGV[1]
  redis.call('SET', KEYS[1], count)
  redis.call('DEL', KEYS[2])
  for at = 2, #ARGV, 2 do
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
end
return {count or '0', unpack(redis.call('HGETALL', KEYS[2]))}
