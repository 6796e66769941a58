-- Prelude of remember.lua and age.lua: the clock of the marks. No KEYS, ARGV or reply.

-- Returns the seconds that this clock has run: the time between calls, at most ten each. Marks do
-- not age when the server's clock jumps or while the topology is stopped. The first call also says
-- in which buckets the marks are: there are none yet.
local function ran_now(run)
  local now = tonumber(redis.call('TIME')[1])
  local at, known = unpack(redis.call('HMGET', run, 'ran_at', 'ran'))
  local since = math.max(0, math.min(10, now - tonumber(at or now)))
  local ran = tonumber(known or 0) + since
  if not known then redis.call('HSET', run, 'layout', 2) end
  redis.call('HSET', run, 'ran_at', now, 'ran', ran)
  return ran
end

-- Units of 64 s in 23 bits, which wrap around after 17 years. The bit above them is set; older
-- versions, with units of 16 s, never set it.
local UNIT, ROUND = 64, 0x800000
