#!lua flags=allow-oom
-- Begin a turn in one shard, which ends all earlier turns. Begins with undo.lua and values.lua.
--
-- KEYS   entries, run, turn, undo: see redis_shard.py
-- ARGV   1 number of the run   2 step   3 attempt; 0 draws one, in the home shard, which is asked first
--        4 number of shards   5 "run step" of the last commit, from the home shard; "?" for that shard
--        6 most changes to undo in one call   7 index of the task   then the fields to read
-- Reply  1: 0 a later turn has begun, 1 there is more to undo or unpack: call again, 2 begun,
--        3 other number of shards   2: attempt, or that number   3: "run step" of the last commit,
--        "*" if unknown   4: its digest   5: the turn before, its calls; if 1: 1, marks to undo first
--        (field, record)   6: foreign writes   7: the values   8: undo records, if the last commit is of this step
--
-- Must never undo a final commit, nor writes of this turn: a repeated call may come late.

local entries, run, turn, undo = unpack(KEYS)
local run_number, step, attempt = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local newest, shards, tasks, ran = unpack(redis.call('HMGET', run, 'run_number', 'shards', 'tasks', 'ran'))
local differs = shards and shards ~= ARGV[4]
if differs and (ran or redis.call('EXISTS', entries) == 1) then return {3, tonumber(shards), '', ''} end

local known = redis.call('HGET', turn, 'turn')
local last_run, last_step, latest = string.match(known or '0 0 0', '(%d+) (%d+) (%d+)')
last_run, last_step, latest = tonumber(last_run), tonumber(last_step), tonumber(latest)
local same = run_number == last_run and step == last_step
if run_number < tonumber(newest or 0) or run_number < last_run or (run_number == last_run and step < last_step)
  or (same and attempt ~= 0 and attempt < latest) then
  return {0, 0, '', ''}
end

local home, committed, digest = ARGV[5] == '?', ARGV[5], ''
if home then
  local last = redis.call('HMGET', turn, 'committed', 'digest')
  committed, digest = last[1] or (known and '' or '*'), last[2] or ''
end
local this = ARGV[1] .. ' ' .. ARGV[2]
local calls, logged, packed = unpack(redis.call('HMGET', turn, 'calls', 'logged', 'packed'))
local before = (known or '') .. ' ' .. (calls or '')
local function begun()
  return {2, attempt, committed, digest, before, foreign_writes(run, ARGV[7]),
    values_of(entries, undo, committed == this, {unpack(ARGV, 8)})}
end
if attempt == 0 then attempt = redis.call('HINCRBY', turn, 'attempts', 1) end
local mine = string.format('%s %d', this, attempt)
if known == mine and calls then return begun() end

redis.call('HSET', run, 'run_number', ARGV[1], 'shards', ARGV[4], 'tasks', math.max(tonumber(tasks or 0), ARGV[7] + 1))
redis.call('HSET', turn, 'turn', mine)
redis.call('HDEL', turn, 'calls')
if committed == '*' or logged == committed then
  -- A final commit. Its log is needed while attempts at the same step may come.
  if logged ~= this then redis.call('UNLINK', undo)
  elseif unpack_some(undo, packed, ARGV[6]) then return {1, attempt, committed, digest, {}} end
elseif redis.call('EXISTS', undo) == 1 then
  redis.call('HINCRBY', run, 'foreign:*', 1)
  local marks = take_back_some(entries, undo, ARGV[6])
  if redis.call('EXISTS', undo) == 1 then return {1, attempt, committed, digest, marks} end
end
redis.call('HSET', turn, 'logged', this, 'calls', 0)
return begun()
