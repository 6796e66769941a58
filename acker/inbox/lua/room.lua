#!lua flags=no-writes
-- Look whether an inbox has room for a parcel.
--
-- KEYS   1 meta   2 entries   3 senders
-- ARGV   1 run   2 sender's task   3 its attempt   4 most tuples, 5 most bytes; below 0: no bound
--        6 tuples and 7 bytes of the parcel
-- Reply  0 if append.lua would answer that it is full, else 1
--
-- Must never answer 0 to a sender that is stale: it would wait instead of ending.

local run, tuples, size = unpack(redis.call('HMGET', KEYS[1], 'run', 'tuples', 'bytes'))
if run ~= ARGV[1] or tonumber(ARGV[4]) < 0 or redis.call('XLEN', KEYS[2]) == 0 then return 1 end
local known = redis.call('HGET', KEYS[3], ARGV[2])
if known and tonumber(known:match('^%d+')) > tonumber(ARGV[3]) then return 1 end
local fits = (tuples or 0) + ARGV[6] <= tonumber(ARGV[4])
return fits and (size or 0) + ARGV[7] <= tonumber(ARGV[5]) and 1 or 0
