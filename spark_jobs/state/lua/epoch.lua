-- Draw the number of a new run: the time in microseconds, and in any case more than the number before, if a clock was set back.
--
-- KEYS   1 the key that keeps it
-- ARGV   none
-- Reply  the number
--
-- Numbers are below 2^53 until the year 2255.

local now = redis.call('TIME')
local drawn = now[1] * 1000000 + now[2]
local before = tonumber(redis.call('GET', KEYS[1]) or 0)
if drawn <= before then drawn = before + 1 end
redis.call('SET', KEYS[1], string.format('%.0f', drawn))
return string.format('%.0f', drawn)
