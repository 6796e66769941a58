#!lua
-- Look whether an inbox has taken a parcel.
--
-- KEYS   1 senders
-- ARGV   1 sender's task   2 number   3 part
-- Reply  1, or 0 if the inbox has taken this part of this append, or a later one of the sender
--
-- Must never be called on its own to decide whether a call that got no reply took effect: that call
-- may still be on its way.

local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known then return 1 end
local last, last_part = known:match('^%d+ (%d+) (%d+)')
last, last_part = tonumber(last), tonumber(last_part)
local number, part = tonumber(ARGV[2]), tonumber(ARGV[3])
return (last > number or last == number and last_part >= part) and 0 or 1
