-- Make a run the current one.
--
-- KEYS   1 the tokens
-- ARGV   1 the run
-- Reply  1 the run is the current one; 0 the run is over, because a later one has begun
--
-- Must never bring back a run that is over: an older driver may make or repeat this call long after
-- its successor has made its own.

local REMEMBERED = 64 -- runs

local function number(run)
  return tonumber((run or ''):match('^%d+') or 0)
end

local function mark(run)
  return ' ' .. redis.sha1hex(run):sub(1, 16)
end

local tokens, run = KEYS[1], ARGV[1]
local found = redis.call('HMGET', tokens, 'run', 'over')
local current, over = found[1], found[2] or ''
if current == run then
  return 1
end
if number(current) > number(run) or over:find(mark(run), 1, true) then
  return 0
end
if current then
  over = (mark(current) .. over):sub(1, REMEMBERED * #mark(''))
end
-- The first write is a delete, which a server that is out of memory allows: a driver can always
-- begin. Steps of this run may be known already, if the server restarted empty during the run.
redis.call('HDEL', tokens, 'run')
for _, field in ipairs(redis.call('HKEYS', tokens)) do
  if field:sub(1, #run + 1) ~= run .. ':' then
    redis.call('HDEL', tokens, field)
  end
end
redis.call('HSET', tokens, 'run', run, 'over', over)
return 1
