#!lua flags=allow-oom
-- Set the mark of a shard where there is none, or where it is still the one whose memory was lost.
--
-- KEYS   1 the mark
-- ARGV   1 the mark that is void, '' for none   2 a fresh one
--        3 milliseconds that it is kept, '0': for ever
-- Reply  the mark that counts now
--
-- Must never replace another mark: it is that of a reader who noticed the same loss before, and
-- would be told of it twice.

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
