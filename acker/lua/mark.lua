#!lua flags=allow-oom
-- Set the mark of a shard if it has none, or if its mark is still the void one.
--
-- KEYS   1 the mark
-- ARGV   1 the void mark, '' for none   2 a new mark
--        3 milliseconds that it is kept, '0': forever
-- Reply  the current mark
--
-- Must never replace another mark: the reader that set it noticed the same loss earlier, and would
-- notice it twice.

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
