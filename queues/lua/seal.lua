-- How far a read goes that was planned to an id: to the last entry there is now, and to the same one at every later call.
--
-- KEYS   stream: a lane of the relay; hash: the seals
-- ARGV   [1] the seal's field   [2] the id that the read was planned to
-- Reply  the id of the last entry to read
--
-- Must never move a seal: a task that is tried again has to read what it read at first. Nor make one when the entries are gone:
-- a task that somebody forgot to end would read what belongs to a later micro-batch.
local sealed = redis.call('HGET', KEYS[2], ARGV[1])
if sealed then
  return sealed
end
if #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2], 'COUNT', 1) == 0 then
  return ARGV[2]
end
sealed = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1]
redis.call('HSET', KEYS[2], ARGV[1], sealed)
return sealed
