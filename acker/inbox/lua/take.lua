#!lua flags=allow-oom
-- Return the entries after a position: at least one if there is one, and no more than fit. Missing
-- tuples are moved here from the head of the line, with the number of their first row in the chunk.
--
-- KEYS   1 meta   2 entries   3 wake; with a line also   4 the line's wake
--        5 meta, 6 entries, 7 progress of the tuples returned to the line   8, 9, 10 of the line
-- ARGV   1 run   2 attempt   3 the position   4 most tuples   5 most bytes   6 claim up to
--        7 claim more, within its share   8 tasks that share the line   9 its last finished step
-- Reply  entries: position, {tuples, payload[, 'first', row]}; false if the attempt is stale; 2 if
--        the server has lost that step or position: entries before it may be back, or come again
--
-- Must never return an entry without keeping its position: it may crash the process.
-- Must never claim tuples if it leaves an entry here: the next take would skip that entry.
local function wake(key) if redis.call('EXISTS', key) == 0 then redis.call('RPUSH', key, '') end end
local function time(position) return tonumber((position or '0'):match('^%d+')) end
local run, attempt, step, taken = unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt', 'step', 'taken'))
local stale = run ~= ARGV[1] or attempt ~= ARGV[2]
if stale or tonumber(step) < tonumber(ARGV[9]) or time(taken) < time(ARGV[3]) then
  -- Pass the wake-up on: it was meant for the inbox's current attempt, or for any task of the line.
  for at = 3, run and math.min(4, #KEYS) or 0 do wake(KEYS[at]) end
  return not stale and 2
end
redis.call('DEL', KEYS[3])
local tuples, size, found, after, entry = tonumber(ARGV[4]), tonumber(ARGV[5]), {}, ARGV[3]
repeat -- entry by entry: most of a long stream would be read in vain
  entry = redis.call('XRANGE', KEYS[2], '(' .. after, '+', 'COUNT', 1)[1]
  if not entry then break end
  tuples, size = tuples - (tonumber(entry[2][1]) or 0), size - #entry[2][2]
  if #found > 0 and (tuples < 0 or size < 0) then break end
  found[#found + 1], after = entry, entry[1]
until tuples <= 0 or size <= 0
if entry then wake(KEYS[3]) end -- there may be more, and the next take may wait first
local waiting = ARGV[7] ~= '0' and KEYS[8] and redis.call('HGET', KEYS[8], 'tuples') or 0
local claims = ARGV[6] - (ARGV[4] - tuples)
claims = math.max(claims, math.min(claims + ARGV[7], math.floor(waiting / ARGV[8])))
for meta = 5, #KEYS, 3 do
  local entries, progress, can = KEYS[meta + 1], KEYS[meta + 2], redis.call('HGET', KEYS[meta], 'run') == run
  while can and not entry and claims > 0 and (size > 0 or #found == 0) do
    local head = redis.call('XRANGE', entries, '-', '+', 'COUNT', 1)[1]
    if not head then break end
    local all, payload, first = tonumber(head[2][1]:match('^%d+$') or 0), head[2][2], head[2][4]
    local before = tonumber(redis.call('HGET', progress, head[1]) or 0)
    local count = math.min(claims, all - before)
    local whole = before + count == all
    redis.call('HSET', progress, head[1], before + count)
    if whole then redis.call('XDEL', entries, head[1]) redis.call('HDEL', progress, head[1]) end
    first = string.format('%d', (tonumber(first) or 0) + before)
    after = redis.call('XADD', KEYS[2], '*', count, payload, 'first', first)
    found[#found + 1] = {after, {count, payload, 'first', first}}
    claims, size = claims - count, size - #payload
    redis.call('HINCRBY', KEYS[1], 'tuples', count)
    redis.call('HINCRBY', KEYS[1], 'bytes', #payload)
    redis.call('HINCRBY', KEYS[meta], 'tuples', 0 - count)
    redis.call('HINCRBY', KEYS[meta], 'bytes', whole and 0 - #payload or 0)
  end
  if redis.call('XLEN', entries) > 0 then wake(KEYS[4]) end
end
if #found > 0 then redis.call('HSET', KEYS[1], 'taken', after) end
return found
