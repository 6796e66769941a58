#!lua flags=allow-oom
-- Move counters of all time to others.
--
-- KEYS   1 the counters of all time
-- ARGV   in pairs: the field of a counter, and the field to which it is added
-- Reply  nothing
--
-- A repeated call changes nothing: it finds no counter.

for at = 1, #ARGV, 2 do
  local count = redis.call('HGET', KEYS[1], ARGV[at])
  if count then
    redis.call('HINCRBY', KEYS[1], ARGV[at + 1], count)
    redis.call('HDEL', KEYS[1], ARGV[at])
  end
end
