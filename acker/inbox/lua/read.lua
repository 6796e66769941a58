#!lua flags=no-writes
-- Return the entries at the given positions, skipping deleted entries.
--
-- KEYS   1 meta   2 entries
-- ARGV   1 run   2 attempt   then positions
-- Reply  entries: position, {tuples, payload}; false if the attempt is stale

local run, attempt = unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt'))
if run ~= ARGV[1] or attempt ~= ARGV[2] then return false end
local found = {}
for at = 3, #ARGV do
  found[#found + 1] = redis.call('XRANGE', KEYS[2], ARGV[at], ARGV[at])[1]
end
return found
