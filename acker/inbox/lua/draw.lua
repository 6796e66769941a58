#!lua flags=allow-oom
-- Draw the number of a new attempt.
--
-- KEYS   1 meta
-- ARGV   1 run
-- Reply  the number, or false if the inbox belongs to another run

if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return false end
return redis.call('HINCRBY', KEYS[1], 'drawn', 1)
