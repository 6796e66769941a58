#!lua
-- Draw a number for a sender, above all numbers drawn before.
--
-- KEYS   1 the last number
-- ARGV   none
-- Reply  the number
--
-- Must never draw below the seconds since the epoch: a server that lost its memory would restart at
-- 1, but inboxes on other servers may have forgotten senders with higher numbers.

local last = tonumber(redis.call('GET', KEYS[1]) or 0)
local number = math.max(last + 1, tonumber(redis.call('TIME')[1]))
redis.call('SET', KEYS[1], number)
return number
