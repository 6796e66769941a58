#!lua flags=allow-oom
-- Keep as many errors of one task as its window has room for.
--
-- KEYS   1 the list of the topology's errors, newest first
--        2 the windows: task to "its beginning, in milliseconds" "errors in it"
-- ARGV   1 errors per window   2 milliseconds of a window   3 errors per topology   4 the task
--        then the errors, oldest first
-- Reply  the number of errors kept
--
-- Must never extend a window that has begun: a task that reports all the time would be muted.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window = redis.call('HGET', KEYS[2], ARGV[4])
local began, count = now, 0
if window then
  local from, errors = window:match('^(%d+) (%d+)$')
  -- A new window begins if the clock was set back.
  if now - from >= 0 and now - from < tonumber(ARGV[2]) then
    began, count = from, errors
  end
end

local kept = math.min(ARGV[1] - count, #ARGV - 4)
if kept <= 0 then
  return 0
end
for i = 5, 4 + kept do
  redis.call('LPUSH', KEYS[1], ARGV[i])
end
redis.call('LTRIM', KEYS[1], 0, ARGV[3] - 1)
redis.call('HSET', KEYS[2], ARGV[4], string.format('%.0f %d', began, count + kept))
-- All windows are over then. Without this, windows of extra tasks that are gone would pile up.
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return kept
