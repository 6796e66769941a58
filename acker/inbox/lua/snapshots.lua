#!lua flags=no-writes
-- Return the snapshots that earlier runs left.
--
-- KEYS   1 meta   2 snapshots
-- ARGV   1 run
-- Reply  the snapshots; false if the inbox belongs to another run

if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return false end
local found = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  if name:sub(1, 5) == 'left ' then found[#found + 1] = redis.call('HGET', KEYS[2], name) end
end
return found
