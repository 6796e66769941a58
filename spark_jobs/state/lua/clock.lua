-- Prelude of remember.lua and age.lua: the clock of the marks. No KEYS, ARGV or reply.

-- Returns the seconds that this memory has run: those between calls, ten at most each time. A
-- clock that jumps, and a topology that does not run, make no mark older.
local function ran_now(run)
  local now = tonumber(redis.call('TIME')[1])
  local at, ran = unpack(redis.call('HMGET', run, 'ran_at', 'ran'))
  local since = math.max(0, math.min(10, now - tonumber(at or now)))
  ran = tonumber(ran or 0) + since
  redis.call('HSET', run, 'ran_at', now, 'ran', ran)
  return ran
end

-- Units of 64 s in 23 bits, which come round after 17 years; the bit above says that it is such a
-- time. A version before had units of 16 s, and that bit was never set.
local UNIT, ROUND = 64, 0x800000
