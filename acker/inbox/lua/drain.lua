#!lua flags=no-writes
-- Return the first entries of an inbox: at least one if it holds some, and no more than fit.
--
-- KEYS   1 meta   2 entries
-- ARGV   1 run   2 most tuples   3 most bytes
-- Reply  entries: position, {tuples, payload}; false if the inbox belongs to another run

if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return false end
local tuples, size = tonumber(ARGV[2]), tonumber(ARGV[3])
local found, after = {}, '0-0'
repeat
  local entry = redis.call('XRANGE', KEYS[2], '(' .. after, '+', 'COUNT', 1)[1]
  if not entry then break end
  after, tuples, size = entry[1], tuples - (tonumber(entry[2][1]) or 0), size - #entry[2][2]
  if #found > 0 and (tuples < 0 or size < 0) then break end
  found[#found + 1] = entry
until tuples <= 0 or size <= 0
return found
