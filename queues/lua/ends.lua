-- The ids up to which each lane of the relay can be read now.
--
-- KEYS   streams: the lanes
-- ARGV   [1] entries a lane at most, 0 for all; then for each lane the id after which to read
-- Reply  for each lane the id of the last entry to read, or the given id where there is nothing new
--
-- Must never return payloads: this runs on every micro-batch, the entries are read by the Spark tasks.
local limit = tonumber(ARGV[1])
local ends = {}
for i, key in ipairs(KEYS) do
  local start, found = ARGV[i + 1], nil
  if limit == 0 then
    found = redis.call('XREVRANGE', key, '+', '(' .. start, 'COUNT', 1)[1]
  else
    local entries = redis.call('XRANGE', key, '(' .. start, '+', 'COUNT', limit)
    found = entries[#entries]
  end
  ends[i] = found and found[1] or start
end
return ends
