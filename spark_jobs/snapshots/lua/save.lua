-- Keeps the snapshots that tasks took after a micro-batch, all or none, and forgets what no attempt can need any more.
--
-- KEYS[1]  set: the runs of this topology that have snapshots
-- KEYS[2]  hash: task -> "OLDER NEWEST", the micro-batches of its two snapshots; OLDER is - where there is one only
-- KEYS[3]  hash: "TASK:BATCH" -> snapshot
-- ARGV[1]  the run
-- ARGV[2]  the micro-batch
-- ARGV[3..] task, snapshot, task, snapshot, …
-- Reply    1 kept, 0 refused: one of the tasks has a snapshot of a later micro-batch
--
-- An attempt at micro-batch n replaces n's snapshot and leaves the one before: that is where another attempt begins.
local batch = tonumber(ARGV[2])
local before = {}
for i = 3, #ARGV, 2 do
  local older, newest = string.match(redis.call('HGET', KEYS[2], ARGV[i]) or '', '^(%S+) (%S+)$')
  if newest and tonumber(newest) > batch then
    return 0
  end
  before[ARGV[i]] = {older or '-', newest or '-'}
end
redis.call('SADD', KEYS[1], ARGV[1])
for i = 3, #ARGV, 2 do
  local task = ARGV[i]
  local older, newest = unpack(before[task])
  if tonumber(newest) ~= batch then
    if older ~= '-' then
      redis.call('HDEL', KEYS[3], task .. ':' .. older)
    end
    older = newest
  end
  redis.call('HSET', KEYS[2], task, older .. ' ' .. ARGV[2])
  redis.call('HSET', KEYS[3], task .. ':' .. ARGV[2], ARGV[i + 1])
end
return 1
