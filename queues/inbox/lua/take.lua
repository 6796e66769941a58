#!lua flags=allow-oom
-- Return the entries beyond a position: at least one if there is one, and no more than fit.
--
-- KEYS   1 meta   2 entries   3 wake
-- ARGV   1 run   2 attempt   3 the position   4 most tuples   5 most bytes
-- Reply  entries: position, {tuples, payload}; false if the attempt is stale
--
-- Must never return an entry without noting how far it went: the entry may end the process.

local run, attempt = unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt'))
if run ~= ARGV[1] or attempt ~= ARGV[2] then
  -- What woke this attempt was meant for the one that has the inbox now.
  if run and redis.call('EXISTS', KEYS[3]) == 0 then redis.call('RPUSH', KEYS[3], '') end
  return false
end
redis.call('DEL', KEYS[3])
local tuples, size = tonumber(ARGV[4]), tonumber(ARGV[5])
local found, after = {}, ARGV[3]
repeat
  -- One by one: most of a long stream would be read for nothing.
  local entry = redis.call('XRANGE', KEYS[2], '(' .. after, '+', 'COUNT', 1)[1]
  if not entry then break end
  tuples, size = tuples - (tonumber(entry[2][1]) or 0), size - #entry[2][2]
  if #found > 0 and (tuples < 0 or size < 0) then break end
  found[#found + 1], after = entry, entry[1]
until tuples <= 0 or size <= 0
if #found > 0 then redis.call('HSET', KEYS[1], 'taken', after) end
return found
