#!lua flags=allow-oom
-- Keep the first traceback of each kind of error, and the time of the last report of each kind.
--
-- KEYS   1 the first report by kind   2 the kinds, by the time of their last report
--        3 the counters of all time
-- ARGV   1 kinds per topology
--        then in threes: kind, seconds since the epoch, the report or "" if it has no traceback
-- Reply  the number of new kinds
--
-- A repeated call changes nothing. Must never replace a report: the log shows the first one.

-- Adds the counter of a kind, ["component", "class", "place"], to that of errors of other kinds.
local function move_counter(kind)
  -- In JSON only this quote is the end of a text: all quotes within texts come after a backslash.
  local ends = kind:find('", "', 1, true)
  local task = kind:sub(1, ends) .. ', 0, '
  local raised = kind:sub(ends + 3, -2):gsub('["\\]', '\\%0')
  local field = task .. '"raised:[' .. raised .. ']"]'
  local count = redis.call('HGET', KEYS[3], field)
  if count then
    local others = task .. '"raised:[\\"errors of other kinds\\", \\"\\"]"]'
    redis.call('HINCRBY', KEYS[3], others, count)
    redis.call('HDEL', KEYS[3], field)
  end
end

local new = 0
for i = 2, #ARGV, 3 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('ZADD', KEYS[2], 'GT', ARGV[i + 1], ARGV[i])
  elseif ARGV[i + 2] ~= '' then
    if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[1]) then
      local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
      if oldest then
        redis.call('HDEL', KEYS[1], oldest)
        move_counter(oldest)
      end
    end
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    redis.call('ZADD', KEYS[2], ARGV[i + 1], ARGV[i])
    new = new + 1
  end
end
return new
