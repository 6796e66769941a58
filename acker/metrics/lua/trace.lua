#!lua flags=allow-oom
-- Keep the first traceback of each kind of error, and the time of the last report of each kind.
--
-- KEYS   1 the first report by kind   2 the kinds, by the time of their last report
-- ARGV   1 kinds per topology
--        then in threes: kind, seconds since the epoch, the report or "" if it has no traceback
-- Reply  the number of new kinds
--
-- A repeated call changes nothing. Must never replace a report: the log shows the first one.

local new = 0
for i = 2, #ARGV, 3 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('ZADD', KEYS[2], 'GT', ARGV[i + 1], ARGV[i])
  elseif ARGV[i + 2] ~= '' then
    if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[1]) then
      local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
      if oldest then
        redis.call('HDEL', KEYS[1], oldest)
      end
    end
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    redis.call('ZADD', KEYS[2], ARGV[i + 1], ARGV[i])
    new = new + 1
  end
end
return new
