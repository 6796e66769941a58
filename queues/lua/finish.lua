-- Forgets what was read, and the seals of all reads but the last of each lane.
--
-- KEYS   hash: the seals   then a stream for each lane
-- ARGV   for each lane the seal's field, then the id that its last read was planned to
-- Reply  for each lane the id of the last entry that was read
--
-- Must never forget the seal of a lane's last read: the lane may have no other for many micro-batches.
local ends, kept = {}, {}
for lane = 1, #KEYS - 1 do
  local field, last = ARGV[2 * lane - 1], ARGV[2 * lane]
  local sealed = redis.call('HGET', KEYS[1], field)
  if sealed then
    kept[#kept + 1] = field
    kept[#kept + 1] = sealed
    last = sealed
  end
  local milliseconds, count = last:match('^(%d+)-(%d+)$')
  redis.call('XTRIM', KEYS[lane + 1], 'MINID', '=', string.format('%s-%d', milliseconds, count + 1))
  ends[lane] = last
end
redis.call('DEL', KEYS[1])
if #kept > 0 then
  redis.call('HSET', KEYS[1], unpack(kept))
end
return ends
