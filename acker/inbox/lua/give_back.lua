#!lua flags=allow-oom
-- Return claimed tuples that have not been begun to the head of the line.
--
-- KEYS   1 meta   2 entries   3 progress   4 the line's wake
--        5 meta   6 entries of the tuples returned to the line
-- ARGV   1 run   2 attempt   then per entry its position, the number of the first tuple to return,
--        and the bitmap of its rows that are then done or returned; '' if no other row stays
-- Reply  1, or 0 if the attempt is stale
--
-- Must never give a tuple back twice: the call may be repeated.

local run, attempt, tuples, size =
  unpack(redis.call('HMGET', KEYS[1], 'run', 'attempt', 'tuples', 'bytes'))
if run ~= ARGV[1] or attempt ~= ARGV[2] then return 0 end
local line = redis.call('HMGET', KEYS[5], 'run', 'tuples', 'bytes')
if line[1] ~= run then return 0 end
local more, more_size = line[2] or 0, line[3] or 0
for at = 3, #ARGV, 3 do
  local position, first, done = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local entry = redis.call('XRANGE', KEYS[2], position, position)[1]
  if entry and (done == '' or redis.call('HGET', KEYS[3], position) ~= done) then
    local all, payload = entry[2][1], entry[2][2]
    local row = string.format('%d', entry[2][4] + first)
    local count = string.format('%d', all - first)
    redis.call('XADD', KEYS[6], '*', count, payload, 'first', row)
    more, more_size = more + count, more_size + #payload
    if done == '' then
      redis.call('XDEL', KEYS[2], position)
      redis.call('HDEL', KEYS[3], position)
      tuples, size = tuples - all, size - #payload
    else
      redis.call('HSET', KEYS[3], position, done)
    end
  end
end
if redis.call('XLEN', KEYS[2]) == 0 then tuples, size = 0, 0 end
redis.call('HSET', KEYS[1], 'tuples', math.max(0, tuples), 'bytes', math.max(0, size))
redis.call('HSET', KEYS[5], 'tuples', more, 'bytes', more_size)
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], '') end
return 1
