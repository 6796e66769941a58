#!lua flags=no-writes
-- Look at an inbox. No payload leaves the server.
--
-- KEYS   1 meta   2 entries
-- ARGV   none
-- Reply  run or false, tuples, bytes, attempts drawn in this run,
--        milliseconds since the task's process was seen or false, since the oldest entry came or
--        false, since the call began that the process is in or false,
--        its word on where it runs or false

local run, tuples, size, drawn, before, seen, since, place =
  unpack(redis.call('HMGET', KEYS[1],
    'run', 'tuples', 'bytes', 'drawn', 'before', 'seen', 'since', 'place'))
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
return {
  run,
  tonumber(tuples or 0),
  tonumber(size or 0),
  tonumber(drawn or 0) - tonumber(before or 0),
  seen and math.max(0, now - seen),
  first and math.max(0, now - first[1]:match('^%d+')) or false,
  since and math.max(0, now - since),
  place,
}
