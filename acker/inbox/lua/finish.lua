#!lua flags=allow-oom
-- Delete the tuples that the sealed step covers.
--
-- KEYS   1 meta   2 entries   3 progress   4 snapshots
-- ARGV   1 run   2 attempt   3 step
-- Reply  0 stale, 1 finished, 2 this step was never sealed
--
-- Must never be refused when the server is out of memory, because it frees memory.

local meta = redis.call('HMGET', KEYS[1], 'run', 'attempt', 'step', 'tuples', 'bytes')
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then return 0 end
if tonumber(ARGV[3]) <= tonumber(meta[3]) then return 1 end
local sealed = redis.call('HGET', KEYS[3], 'sealed') or ''
local step, ticks, tuples, size, whole, part =
  sealed:match('^(%d+) (%d+) (%d+) (%d+) %x+|([^|]*)|(.*)$')
if step ~= ARGV[3] then return 2 end

for position, rows in part:gmatch('(%S+)=(%x+)') do
  redis.call('HSET', KEYS[3], position, rows)
end
-- Lua unpacks only a few thousand values.
local slice = {}
local function forget()
  if #slice > 0 then redis.call('XDEL', KEYS[2], unpack(slice)) end
  redis.call('HDEL', KEYS[3], 'sealed', unpack(slice))
  slice = {}
end
for position in whole:gmatch('%S+') do
  slice[#slice + 1] = position
  if #slice == 1000 then forget() end
end
forget()
local snapshot = redis.call('HGET', KEYS[4], 'sealed')
if snapshot then
  redis.call('HSET', KEYS[4], 'kept', snapshot)
  redis.call('HDEL', KEYS[4], 'sealed')
end

tuples, size = tonumber(meta[4] or 0) - tuples, tonumber(meta[5] or 0) - size
if redis.call('XLEN', KEYS[2]) == 0 then tuples, size = 0, 0 end
redis.call('HSET', KEYS[1], 'step', step, 'ticks', ticks,
  'tuples', math.max(0, tuples), 'bytes', math.max(0, size))
return 1
