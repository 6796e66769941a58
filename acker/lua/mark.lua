#!lua flags=allow-oom
-- Set the mark of a shard if there is none, or if it is still the mark of the lost memory.
--
-- KEYS   1 the mark
-- ARGV   1 the mark that is void, '' for none   2 a fresh one
--        3 milliseconds that it is kept, '0': forever
-- Reply  the current mark
--
-- Must never replace another mark: its reader noticed the same loss earlier, and would see it twice.

local mark = redis.call('GET', KEYS[1])
if mark and mark ~= ARGV[1] then
  return mark
end
if ARGV[3] == '0' then
  redis.call('SET', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return ARGV[2]
