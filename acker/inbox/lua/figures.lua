#!lua flags=no-writes
-- Return the figures of an inbox, without any payload.
--
-- KEYS   1 meta   2 entries
-- ARGV   none
-- Reply  run or false, tuples, bytes, attempts drawn in this run; then in milliseconds the time
--        since the last heartbeat, since the oldest entry was appended, and since the current call
--        began, each or false; the place where the process runs, as it reported, or false; the
--        number of tuples that wait for a retry; its open windows, as it reported, or false

local run, tuples, size, drawn, before, seen, since, place, retrying, windows =
  unpack(redis.call('HMGET', KEYS[1],
    'run', 'tuples', 'bytes', 'drawn', 'before', 'seen', 'since', 'place', 'retrying',
    'windows'))
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
  tonumber(retrying or 0),
  windows,
}
