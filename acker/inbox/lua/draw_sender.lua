#!lua
-- Draw a number for a sender, above all that were drawn before.
--
-- KEYS   1 the last one
-- ARGV   none
-- Reply  the number
--
-- At least the seconds since the epoch: a server that lost its memory must not restart at 1, because
-- inboxes on other servers may have forgotten higher numbers.

local last = tonumber(redis.call('GET', KEYS[1]) or 0)
local number = math.max(last + 1, tonumber(redis.call('TIME')[1]))
redis.call('SET', KEYS[1], number)
return number
