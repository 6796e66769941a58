#!lua flags=allow-oom
-- Draw the number of a new run: the time in microseconds, or one more than the previous number if
-- the clock was set back.
--
-- KEYS   1 the driver's seat, a string: "DRIVER NOTE"   2 the number of the newest run
-- ARGV   1 the driver
-- Reply  the number; false if another driver or no driver has the seat
--
-- Numbers are below 2^53 until the year 2255.

local held = redis.call('GET', KEYS[1])
if not held or held:match('^%S+') ~= ARGV[1] then return false end
local now = redis.call('TIME')
local drawn = now[1] * 1000000 + now[2]
local before = tonumber(redis.call('GET', KEYS[2]) or 0)
if drawn <= before then drawn = before + 1 end
redis.call('SET', KEYS[2], string.format('%.0f', drawn))
return string.format('%.0f', drawn)
