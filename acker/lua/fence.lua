#!lua flags=allow-oom
-- Refuse older attempts at a task from now on.
--
-- KEYS   1 the tokens
-- ARGV   1 the run   2 the task   3 the attempt, 4 bytes
-- Reply  1 fenced; 0 a newer attempt is known, or the run is not the current one
--
-- Must never forget the last step: the new attempt repeats it.

local tokens, run = KEYS[1], ARGV[1]
local field, attempt = run .. ':' .. ARGV[2], struct.unpack('>I4', ARGV[3])
local found = redis.call('HMGET', tokens, 'run', field)
local current, known = found[1], found[2] or ''
if current and current ~= run then
  return 0
end
local newest = known ~= '' and struct.unpack('>I4', known) or -1
if attempt < newest then
  return 0
end
if attempt > newest then
  redis.call('HSET', tokens, field, ARGV[3] .. known:sub(5))
end
return 1
