#!lua flags=allow-oom
-- Delete drained entries.
--
-- KEYS   1 meta   2 entries   3 progress
-- ARGV   1 run   then positions
-- Reply  1, or 0 if the inbox belongs to another run
--
-- Must never free room for an entry that is already deleted: the call may be repeated.

local run, tuples, size = unpack(redis.call('HMGET', KEYS[1], 'run', 'tuples', 'bytes'))
if run ~= ARGV[1] then return 0 end
tuples, size = tonumber(tuples or 0), tonumber(size or 0)
for at = 2, #ARGV do
  local entry = redis.call('XRANGE', KEYS[2], ARGV[at], ARGV[at])[1]
  if entry then
    tuples, size = tuples - (tonumber(entry[2][1]) or 0), size - #entry[2][2]
    redis.call('XDEL', KEYS[2], ARGV[at])
    redis.call('HDEL', KEYS[3], ARGV[at])
  end
end
if redis.call('XLEN', KEYS[2]) == 0 then tuples, size = 0, 0 end
redis.call('HSET', KEYS[1], 'tuples', math.max(0, tuples), 'bytes', math.max(0, size))
return 1
